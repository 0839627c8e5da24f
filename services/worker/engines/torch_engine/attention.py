"""Attention over paged keys and values: what the engine asks for, and which way it is done.

The arena is one contiguous tensor of blocks, each (layers, 2, kv_heads, block_size, head_width): a block holds all
layers, so that it is copied or swapped as one piece; keys are at 0 and values at 1 of the second place; within a layer
the tokens of one head lie side by side, which is how attention reads them. Token `t` of a sequence lies in its block
`t // block_size` at place `t % block_size`.

Two implementations give the same numbers to rounding:

- `torch`: gather and `scaled_dot_product_attention`; runs everywhere, and is the reference.
- `compiled`: a kernel that reads the arena in place through the block tables; CPU only, needs numba (ADR 7).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_log = logging.getLogger(__name__)

Tables = NDArray[np.int32]
"""Block tables, one row per running sequence: (rows, most blocks). Kept by the caller from step to step."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What attention needs to know of a model and of its memory. `stride` is how many numbers lie between the
    beginnings of two blocks, a multiple of `head_width`, where blocks are larger than this model's; 0 where not.

    Queries are multiplied by `scale`, 0 for one through the root of `head_width`. Where `cap` is not 0, a score s
    becomes cap · tanh(s / cap). A token of layer i sees `windows[i]` tokens, its own among them, 0 for all; without
    `windows` every layer's sees all.

    :raises ValueError: `heads` is not a multiple of `kv_heads`, or a size is not positive or not possible.
    """

    heads: int
    kv_heads: int
    head_width: int
    layers: int
    block_size: int
    dtype: torch.dtype = torch.float32
    stride: int = 0
    scale: float = 0.0
    cap: float = 0.0
    windows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if min(self.heads, self.kv_heads, self.head_width, self.layers, self.block_size) < 1:
            raise ValueError("every size must be positive")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} key heads evenly")
        if len(self.windows) not in (0, self.layers) or min(self.windows, default=0) < 0:
            raise ValueError(f"windows {self.windows} are not one for each of {self.layers} layers")
        if self.stride and (self.stride < self.block_numbers or self.stride % self.head_width):
            raise ValueError(f"blocks of {self.block_numbers} numbers cannot lie {self.stride} apart")

    @property
    def block_numbers(self) -> int:
        """Numbers of one block that are used."""
        return self.layers * 2 * self.kv_heads * self.block_size * self.head_width

    @property
    def apart(self) -> int:
        """Numbers between the beginnings of two blocks."""
        return self.stride or self.block_numbers

    def window(self, layer: int) -> int:
        """How many tokens one of this layer sees, 0 for all."""
        return self.windows[layer] if self.windows else 0

    def arena(self, blocks: int) -> tuple[int, int, int, int, int, int]:
        """The shape of an arena of so many blocks."""
        return (blocks, self.layers, 2, self.kv_heads, self.block_size, self.head_width)


@dataclass(frozen=True, slots=True)
class Segment:
    """Successive tokens of one sequence in a step's batch: `count` tokens at positions `start` … whose blocks are row
    `row` of the block tables. A decoding sequence has count 1. Segments follow one another in the batch."""

    row: int
    start: int
    count: int = 1


class Attention(Protocol):
    """One way of doing it, made once per model. One caller at a time."""

    def plan(self, tables: Tables, segments: Sequence[Segment]) -> Any:
        """What all layers of a step share. `tables` is int32, C-contiguous and must not change while the plan is
        used; rows need only name as many blocks as the sequence then has tokens for."""
        ...

    def attend(self, plan: Any, layer: int, query: Tensor, key: Tensor, value: Tensor, arena: Tensor) -> Tensor:
        """Store the new keys and values (tokens, kv_heads, head_width), then let the queries (tokens, heads,
        head_width) attend to what is stored up to and including their own token, within the layer's window: (tokens,
        heads·head_width).

        Queries, keys and values may be views into a wider row as long as each token's heads lie side by side. Places
        that no segment owns are never read. Two segments must not write to the same place.
        """
        ...


def build_attention(
    shape: AttentionShape, device: torch.device, kernel: Literal["auto", "torch", "compiled"] = "auto"
) -> Attention:
    """The quickest implementation that works here; compiles or loads its kernel.

    :raises ValueError: `kernel` is "compiled" and that is not possible here.
    """
    from services.worker.engines.torch_engine.attention_torch import TorchAttention

    if kernel == "torch" or (kernel == "auto" and device.type != "cpu"):
        return TorchAttention(shape, device)
    try:
        from services.worker.engines.torch_engine.attention_compiled import CompiledAttention

        return CompiledAttention(shape, device)
    except Exception as error:
        # Numba meets many machines; without it the engine is slower but right.
        if kernel == "compiled":
            raise ValueError(f"compiled attention is not possible here: {error}") from error
        _log.warning("attention runs without its compiled kernel, which is slower: %s", error)
        return TorchAttention(shape, device)
