"""The memory of keys and values: one pool of blocks per model, block tables per running sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.worker.engines.torch_engine.config import ModelConfig


class KvMemory:
    """Keys and values of one model in float32. Token `t` of a sequence lies in block `blocks[t // block_size]` at
    place `t % block_size`.

    A batch is padded to its longest sequence, so memory that a sequence does not own is read and masked. It must
    hold finite numbers all the same, because 0 × NaN is NaN: the pool starts as zeros (untouched pages cost nothing),
    padding names a spare block that nobody writes, and the blocks of a failed sequence are cleared.
    """

    def __init__(self, config: ModelConfig, *, total_blocks: int, block_size: int, max_running: int) -> None:
        self._block_size = block_size
        self._spare = total_blocks
        shape = ((total_blocks + 1) * block_size, config.kv_heads, config.head_width)
        self._keys = [torch.zeros(shape) for _ in range(config.layers)]
        self._values = [torch.zeros(shape) for _ in range(config.layers)]
        self._blocked = (total_blocks + 1, block_size * config.kv_heads * config.head_width)
        self._heads = (config.kv_heads, config.head_width)
        self._gathered = torch.empty((2, 0, self._blocked[1]))
        longest = min(-(-config.context // block_size), total_blocks)
        self._tables = torch.full((max_running, longest), self._spare, dtype=torch.long)

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._block_size

    def assign(self, row: int, blocks: Sequence[int]) -> None:
        """Set the block table of running row `row`; it holds until the row is assigned again."""
        self._tables[row].fill_(self._spare)
        self._tables[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.long)

    def tables(self, rows: Tensor, longest: int) -> Tensor:
        """The block tables of `rows` (n,), cut to what `longest` tokens need: (n, blocks)."""
        return self._tables.index_select(0, rows)[:, : -(-longest // self._block_size)]

    def slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Where the tokens at `positions` (n,) of the sequences in `rows` (n,) lie: flat slot numbers (n,)."""
        return self._tables[rows, positions // self._block_size] * self._block_size + positions % self._block_size

    def clear(self, blocks: Sequence[int]) -> None:
        """Overwrite blocks with zeros."""
        for pool in (*self._keys, *self._values):
            pool.view(self._blocked)[list(blocks)] = 0.0

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store (n, kv_heads, head_width) keys and values at flat `slots` (n,)."""
        self._keys[layer].index_copy_(0, slots, keys)
        self._values[layer].index_copy_(0, slots, values)

    def read(self, layer: int, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Gather the blocks of `tables` (n, blocks): keys and values, each (n, kv_heads, blocks·block_size,
        head_width), valid until the next read."""
        count, blocks = tables.shape
        flat = tables.flatten()
        shape = (count, blocks * self._block_size, *self._heads)
        keys, values = self._buffers(count * blocks)
        torch.index_select(self._keys[layer].view(self._blocked), 0, flat, out=keys)
        torch.index_select(self._values[layer].view(self._blocked), 0, flat, out=values)
        return keys.view(shape).transpose(1, 2), values.view(shape).transpose(1, 2)

    def _buffers(self, blocks: int) -> tuple[Tensor, Tensor]:
        """Where `read` gathers to. Kept between reads: fresh memory of this size costs more in page faults than the
        gathering itself."""
        if self._gathered.shape[1] < blocks:
            self._gathered = torch.empty((2, blocks + blocks // 2, self._blocked[1]))
        return self._gathered[0, :blocks], self._gathered[1, :blocks]
