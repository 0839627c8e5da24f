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
import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numba import types
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engines.torch_engine import attention_vectors as vectors
from services.worker.engines.torch_engine.attention import AttentionShape, Segment, Tables

_WRITE, _ATTEND = 1, 2
_TILE = 16
"""Prompt tokens per task: enough to find the keys of a head in the cache, few enough to share among threads."""

_REGISTERS = 16
"""Running sums held at once while values are mixed, of 32 AVX-512 registers."""

# The fields of a call's arguments, all int64: two counters the threads draw from, addresses and distances in bytes.
# fmt: off
(_NEXT_TASK, _NEXT_THREAD, _LAST_TASK, _TASKS, _SEGMENTS, _TABLES, _TABLE_STRIDE, _ARENA, _QUERY, _QUERY_STRIDE, _KEY,
 _KEY_STRIDE, _VALUE, _VALUE_STRIDE, _OUT, _SCRATCH, _SCRATCH_SIZE, _SCORES, _FIELDS) = range(19)
# fmt: on


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


class CompiledAttention:
    """Implements `Attention` on a CPU.

    :raises ValueError: the device, the dtype or the width of the heads is not one that the kernel knows.
    """

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        if device.type != "cpu":
            raise ValueError(f"the kernel runs on a CPU, not on {device.type}")
        if shape.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"the kernel does not know {shape.dtype}")
        if shape.head_width % vectors.LANES:
            raise ValueError(f"heads of {shape.head_width} are not a multiple of {vectors.LANES}")
        half = shape.dtype == torch.bfloat16
        self._shape = shape
        self._kernel = _kernel(shape.heads, shape.kv_heads, shape.head_width, shape.layers, shape.block_size, half)
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
        padded = -(-longest // max(size, vectors.LANES)) * max(size, vectors.LANES)
        need = (self._shape.heads * (padded + self._shape.head_width + 1) * 4 + 127) // 64 * 64
        if self._scratch.numel() < need * threads:
            self._scratch = torch.empty(2 * need * threads, dtype=torch.uint8)
        arguments = np.zeros(_FIELDS, dtype=np.int64)
        arguments[_TASKS], arguments[_SEGMENTS] = tasks.ctypes.data, described.ctypes.data
        arguments[_TABLES], arguments[_TABLE_STRIDE] = tables.ctypes.data, tables.strides[0]
        arguments[_SCRATCH], arguments[_SCRATCH_SIZE] = self._scratch.data_ptr(), need
        arguments[_SCORES] = padded * 4
        total = int(described[-1, 1]) + segments[-1].count
        return CompiledPlan(tasks, described, tables, self._scratch, arguments, writes, total)

    def attend(
        self, plan: CompiledPlan, layer: int, query: Tensor, key: Tensor, value: Tensor, arena: Tensor
    ) -> Tensor:
        """See `Attention.attend`."""
        shape = self._shape
        out = query.new_empty((plan.tokens, shape.heads * shape.head_width))
        arguments = plan.arguments
        bytes_each = shape.dtype.itemsize
        arguments[_ARENA] = arena.data_ptr() + layer * self._layer_size
        arguments[_QUERY], arguments[_QUERY_STRIDE] = query.data_ptr(), query.stride(0) * bytes_each
        arguments[_KEY], arguments[_KEY_STRIDE] = key.data_ptr(), key.stride(0) * bytes_each
        arguments[_VALUE], arguments[_VALUE_STRIDE] = value.data_ptr(), value.stride(0) * bytes_each
        arguments[_OUT] = out.data_ptr()
        if plan.writes:
            self._run(arguments, 0, plan.writes)
        self._run(arguments, plan.writes, len(plan.tasks))
        return out

    def _run(self, arguments: NDArray[np.int64], first: int, last: int) -> None:
        arguments[_NEXT_TASK], arguments[_NEXT_THREAD], arguments[_LAST_TASK] = first, 0, last
        threads = min(torch.get_num_threads(), last - first)
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
        decodes[:, :, 0] = _WRITE | _ATTEND
        decodes[:, :, 1] = singles[:, None]
        decodes[:, :, 2:4] = 0, 1
        decodes[:, :, 4] = np.arange(each) * (heads // each)
        decodes[:, :, 5] = decodes[:, :, 4] + heads // each
        written, attended = [], []
        for index in np.flatnonzero(segments[:, 3] > 1).tolist():
            count = int(segments[index, 3])
            for first in range(0, count, _TILE):
                tokens = min(_TILE, count - first)
                written.append((_WRITE, index, first, tokens, 0, heads))
                attended += [(_ATTEND, index, first, tokens, head, head + 1) for head in range(heads)]
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


@numba.njit(fastmath={"contract", "nsz"}, inline="always")
def _exp(x: Any) -> Any:
    """e to the power of a float32 that is not positive, within 2 units in the last place; NaN stays NaN.

    Written out because numba calls the C library for each number, where this fills the lanes.
    """
    x = np.float32(-87.0) if x < np.float32(-87.0) else x
    whole = np.floor(x * np.float32(math.log2(math.e)) + np.float32(0.5))
    # The logarithm of two in two parts, so that the rest is exact.
    rest = (x - whole * np.float32(0.693359375)) + whole * np.float32(2.12194440e-4)
    power = np.float32(1 / 5040)
    power = power * rest + np.float32(1 / 720)
    power = power * rest + np.float32(1 / 120)
    power = power * rest + np.float32(1 / 24)
    power = power * rest + np.float32(1 / 6)
    power = power * rest + np.float32(1 / 2)
    power = power * rest * rest + rest + np.float32(1.0)
    return power * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


@numba.njit(fastmath={"contract", "nsz", "reassoc"}, nogil=True, cache=True)
def _softmax(address: Any, count: int) -> Any:
    """Replace `count` scores by e to the power of their distance from the largest; 1 / their sum."""
    scores = numba.carray(vectors.floats_at(address), count)
    largest = scores[0]
    for index in range(np.uint64(count)):
        largest = scores[index] if scores[index] > largest else largest
    total = np.float32(0.0)
    for index in range(np.uint64(count)):
        score = _exp(scores[index] - largest)
        scores[index] = score
        total += score
    return np.float32(1.0) / total


@functools.lru_cache(maxsize=None)
def _kernel(heads: int, kv_heads: int, width: int, layers: int, block_size: int, half: bool) -> Any:
    """Compile the kernel for one shape, or load it from numba's cache on disk."""
    item = 2 if half else 4
    group = heads // kv_heads
    chunks = width // vectors.LANES
    row = width * item
    head_size = block_size * row
    values_at = kv_heads * head_size
    block = layers * 2 * values_at
    # Running sums of as many columns at a time as registers hold.
    columns = max(
        part for part in range(1, chunks + 1) if chunks % part == 0 and (part == 1 or part * group <= _REGISTERS)
    )
    slices = chunks // columns
    # Constants of their own: only names and literals are compile-time constants to numba, products are not.
    sum_row, slice_row = width * 4, row // slices
    scale = np.float32(1.0 / math.sqrt(width))
    one = np.float32(1.0)
    address = np.uint64

    @numba.njit(nogil=True, fastmath={"contract", "nsz"}, boundscheck=False)
    def attend(
        table: Any, length: int, arena: Any, query: Any, out: Any, first: int, last: int, scratch: Any, stride: Any
    ) -> None:
        """One token: `query` and `out` are its rows of all heads; key heads `first` … `last`-1 are done. Scratch holds
        scores (heads, `stride` bytes), sums (heads, width) and one factor per head."""
        blocks = (length + block_size - 1) // block_size
        sums = scratch + address(heads) * stride
        factors = numba.carray(vectors.floats_at(sums + address(heads * width * 4)), heads)
        start = arena + address(first * head_size)
        values = start + address(table[0]) * address(block) + address(values_at)
        following = values - address(values_at)
        for index in range(blocks):
            here = following
            following = values
            if index + 1 < blocks:
                following = start + address(table[index + 1]) * address(block)
            filled = min(block_size, length - index * block_size)
            for head in range(first, last):
                queries = vectors.load(query + address(head * group * row), scale, chunks, row, group, half)
                scores = scratch + address(head * group) * stride + address(index * block_size * 4)
                offset = address((head - first) * head_size)
                for place in range(filled):
                    at = offset + address(place * row)
                    vectors.prefetch(following + at, row)
                    vectors.score(queries, here + at, scores + address(place * 4), stride, chunks, half)
        for index in range(first * group, last * group):
            factors[index] = _softmax(scratch + address(index) * stride, length)
        mixed = numba.carray(vectors.floats_at(sums), heads * width)
        for index in range(first * group * width, last * group * width):
            mixed[index] = 0.0
        following = values
        for index in range(blocks):
            here = following
            if index + 1 < blocks:
                following = start + address(table[index + 1]) * address(block) + address(values_at)
            filled = min(block_size, length - index * block_size)
            for head in range(first, last):
                weights = scratch + address(head * group) * stride + address(index * block_size * 4)
                offset = address((head - first) * head_size)
                for part in range(slices):
                    place_of = sums + address(head * group * width * 4 + part * columns * vectors.LANES * 4)
                    held = vectors.load(place_of, one, columns, sum_row, group, False)
                    inner = offset + address(part * columns * vectors.LANES * item)
                    for place in range(filled):
                        at = inner + address(place * row)
                        vectors.prefetch(following + at, slice_row)
                        held = vectors.mix(held, here + at, weights + address(place * 4), stride, columns, half)
                    vectors.store(place_of, held, one, columns, sum_row, group, False)
        for index in range(first * group, last * group):
            held = vectors.load(sums + address(index * width * 4), factors[index], chunks, 0, 1, False)
            vectors.store(out + address(index * row), held, one, chunks, 0, 1, half)

    @numba.njit(nogil=True, boundscheck=False)
    def write(target: Any, key: Any, value: Any, first: int, last: int) -> None:
        """Store the new key and value of one token, heads `first` … `last`-1."""
        for head in range(first, last):
            place = target + address(head * head_size)
            vectors.copy(place, key + address(head * row), row)
            vectors.copy(place + address(values_at), value + address(head * row), row)

    @numba.cfunc(types.void(types.CPointer(types.int64)), nogil=True, cache=True)
    def work(fields: Any) -> None:
        """What each thread of the pool runs: take tasks until there are none."""
        given = numba.carray(fields, _FIELDS)
        own = address(given.ctypes.data)
        thread = vectors.take_number(own + address(_NEXT_THREAD * 8))
        scratch = address(given[_SCRATCH] + thread * given[_SCRATCH_SIZE])
        arena, tables = address(given[_ARENA]), address(given[_TABLES])
        stride = address(given[_SCORES])
        while True:
            number = vectors.take_number(own + address(_NEXT_TASK * 8))
            if number >= given[_LAST_TASK]:
                break
            task = numba.carray(vectors.integers_at(address(given[_TASKS] + number * 24)), 6)
            segment = numba.carray(vectors.integers_at(address(given[_SEGMENTS] + task[1] * 16)), 4)
            first, last = task[4], task[5]
            table = numba.carray(vectors.integers_at(tables + address(segment[0] * given[_TABLE_STRIDE])), 1 << 30)
            for offset in range(task[2], task[2] + task[3]):
                token, position = segment[1] + offset, segment[2] + offset
                if task[0] & _WRITE:
                    inside = address(table[position // block_size]) * address(block)
                    target = arena + inside + address(position % block_size * row)
                    key = address(given[_KEY] + token * given[_KEY_STRIDE])
                    write(target, key, address(given[_VALUE] + token * given[_VALUE_STRIDE]), first, last)
                if task[0] & _ATTEND:
                    query = address(given[_QUERY] + token * given[_QUERY_STRIDE])
                    out = address(given[_OUT] + token * (heads * row))
                    attend(table, position + 1, arena, query, out, first, last, scratch, stride)

    return work
