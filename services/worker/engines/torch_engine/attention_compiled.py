"""Paged attention on a CPU as one kernel compiled by numba: nothing is gathered, padded or masked.

A step is cut into tasks, each a few tokens and a few heads, which the threads of torch's own OpenMP pool take one by
one. A second pool beside torch's would have its idle threads spin on the cores that the other one needs; so the kernel
is called through the entry point of the OpenMP library that torch itself uses.

Every token's attention is computed by the same operations in the same order whoever computes it and whatever else the
step holds. A sequence's numbers are therefore the same to the bit alone and in a batch, and its prompt may be cut into
chunks anywhere.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engines.torch_engine import attention_code
from services.worker.engines.torch_engine import attention_layout as layout
from services.worker.engines.torch_engine.attention import AttentionShape, Segment, Tables

_TILE = 16
"""Prompt tokens per task: enough to find the keys of a head in the cache, few enough to share among threads."""


_ENDLESS = 1 << 40


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """`tasks` are rows of (what to do, segment, first token in it, tokens, first head, last head), the first `writes`
    of which must be done before the others start; `segments` rows of (row of the tables, first token in the batch,
    position of that token); `arguments` a call's arguments as far as they are known."""

    tasks: NDArray[np.int32]
    segments: NDArray[np.int32]
    tables: Tables
    scratch: Tensor
    arguments: NDArray[np.int64]
    writes: int
    tokens: int
    threads: int


class CompiledAttention:
    """Implements `Attention` on a CPU.

    :raises ValueError: the device, the dtype or the width of the heads is not one that the kernel knows.
    """

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        if device.type != "cpu":
            raise ValueError(f"the kernel runs on a CPU, not on {device.type}")
        if shape.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"the kernel does not know {shape.dtype}")
        if shape.head_width % layout.LANES:
            raise ValueError(f"heads of {shape.head_width} are not a multiple of {layout.LANES}")
        half = shape.dtype == torch.bfloat16
        self._shape = shape
        sizes = (shape.heads, shape.kv_heads, shape.head_width, shape.block_size, half)
        self._kernel = attention_code.load(*sizes, shape.cap > 0.0, any(shape.windows))
        scale = (shape.scale or shape.head_width**-0.5) / (shape.cap or 1.0)
        self._factors = np.array([scale, shape.cap], dtype=np.float32).view(np.int32)
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._kernel.address)
        self._layer_size = 2 * shape.kv_heads * shape.block_size * shape.head_width * shape.dtype.itemsize
        self._parallel = _parallel()
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def plan(self, tables: Tables, segments: Sequence[Segment]) -> CompiledPlan:
        """See `Attention.plan`.

        :raises ValueError: `tables` is not a C-contiguous int32 matrix, or there is no segment.
        """
        if tables.dtype != np.int32 or tables.ndim != 2 or not tables.flags.c_contiguous or not segments:
            raise ValueError("block tables must be a C-contiguous int32 matrix, and segments at least one")
        described = np.array([(s.row, 0, s.start, s.count) for s in segments], dtype=np.int32)
        counts = described[:, 3]
        described[1:, 1] = np.cumsum(counts[:-1])
        ends = described[:, 2] + counts
        size, longest = self._shape.block_size, int(ends.max())
        if longest > tables.shape[1] * size or int(described[:, 0].max()) >= tables.shape[0]:
            raise ValueError("a segment reaches beyond its block table")
        threads = torch.get_num_threads() if self._parallel else 1
        tasks, writes = self._tasks(described, ends, threads)
        padded = -(-longest // layout.LANES) * layout.LANES
        need = (self._shape.heads * (padded + self._shape.head_width + 1) * 4 + 127) // 64 * 64
        if self._scratch.numel() < need * threads:
            self._scratch = torch.empty(2 * need * threads, dtype=torch.uint8)
        arguments = np.zeros(layout.FIELDS, dtype=np.int64)
        arguments[layout.TASKS], arguments[layout.SEGMENTS] = tasks.ctypes.data, described.ctypes.data
        arguments[layout.TABLES], arguments[layout.TABLE_STRIDE] = tables.ctypes.data, tables.strides[0]
        arguments[layout.SCRATCH], arguments[layout.SCRATCH_SIZE] = self._scratch.data_ptr(), need
        arguments[layout.SCORES] = padded * 4
        arguments[layout.SCALE], arguments[layout.CAP] = self._factors
        arguments[layout.BLOCK] = self._shape.apart * self._shape.dtype.itemsize
        total = int(described[-1, 1]) + segments[-1].count
        return CompiledPlan(tasks, described, tables, self._scratch, arguments, writes, total, threads)

    def attend(
        self, plan: CompiledPlan, layer: int, query: Tensor, key: Tensor, value: Tensor, arena: Tensor
    ) -> Tensor:
        """See `Attention.attend`.

        :raises ValueError: a tensor is not of the shape's dtype or not as many rows as the plan has, or the arena is
            not contiguous: the kernel itself checks nothing.
        """
        shape = self._shape
        if any(tensor.dtype != shape.dtype for tensor in (query, key, value, arena)) or not arena.is_contiguous():
            raise ValueError(f"queries, keys, values and a contiguous arena must all be {shape.dtype}")
        if not len(query) == len(key) == len(value) == plan.tokens:
            raise ValueError(f"the plan is for {plan.tokens} tokens")
        query, key, value = self._side_by_side(query), self._side_by_side(key), self._side_by_side(value)
        out = query.new_empty((plan.tokens, shape.heads * shape.head_width))
        arguments = plan.arguments
        bytes_each = shape.dtype.itemsize
        arguments[layout.ARENA] = arena.data_ptr() + layer * self._layer_size
        arguments[layout.QUERY], arguments[layout.QUERY_STRIDE] = query.data_ptr(), query.stride(0) * bytes_each
        arguments[layout.KEY], arguments[layout.KEY_STRIDE] = key.data_ptr(), key.stride(0) * bytes_each
        arguments[layout.VALUE], arguments[layout.VALUE_STRIDE] = value.data_ptr(), value.stride(0) * bytes_each
        arguments[layout.OUT], arguments[layout.WINDOW] = out.data_ptr(), shape.window(layer) or _ENDLESS
        if plan.writes:
            self._run(arguments, 0, plan.writes, plan.threads)
        self._run(arguments, plan.writes, len(plan.tasks), plan.threads)
        return out

    def _side_by_side(self, heads: Tensor) -> Tensor:
        return heads if heads.stride()[1:] == (self._shape.head_width, 1) else heads.contiguous()

    def _run(self, arguments: NDArray[np.int64], first: int, last: int, threads: int) -> None:
        arguments[layout.NEXT_TASK], arguments[layout.NEXT_THREAD], arguments[layout.LAST_TASK] = first, 0, last
        threads = min(threads, last - first)
        if self._parallel is None or threads == 1:
            self._call(arguments.ctypes.data)
        else:
            self._parallel(self._kernel.address, arguments.ctypes.data, threads, 0)

    def _tasks(self, segments: NDArray[np.int32], ends: NDArray[np.int32], threads: int) -> tuple[Any, int]:
        """The tasks of a step, long ones first, and how many of them only write."""
        heads = self._shape.kv_heads
        singles = np.flatnonzero(segments[:, 3] == 1)
        singles = singles[np.argsort(-ends[singles], kind="stable")]
        # All heads of a sequence in one task read memory in order; few sequences are cut by heads to feed all threads.
        each = 1 if len(singles) >= 4 * threads else heads
        decodes = np.empty((len(singles), each, 6), dtype=np.int32)
        decodes[:, :, 0] = layout.WRITE | layout.ATTEND
        decodes[:, :, 1] = singles[:, None]
        decodes[:, :, 2:4] = 0, 1
        decodes[:, :, 4] = np.arange(each) * (heads // each)
        decodes[:, :, 5] = decodes[:, :, 4] + heads // each
        written, attended = [], []
        for index in np.flatnonzero(segments[:, 3] > 1).tolist():
            count = int(segments[index, 3])
            for first in range(0, count, _TILE):
                tokens = min(_TILE, count - first)
                written.append((layout.WRITE, index, first, tokens, 0, heads))
                attended += [(layout.ATTEND, index, first, tokens, head, head + 1) for head in range(heads)]
        attended.reverse()
        parts = [np.array(part, dtype=np.int32).reshape(-1, 6) for part in (written, attended)]
        return np.concatenate((parts[0], parts[1], decodes.reshape(-1, 6))), len(written)


def _parallel() -> Any:
    """The function of torch's OpenMP library that runs a function on all threads of the pool, None if there is none.

    Looked up through torch's own library, the name resolves to the OpenMP library that torch was linked with.
    """
    name = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib"}.get(sys.platform)
    if name is None or not torch.backends.openmp.is_available():
        return None
    try:
        function = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name)).GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    function.restype = None
    return function
