"""The memory of keys and values: one arena of equal blocks for all models, and the tiers below it.

A block holds the keys and values of `block_size` successive tokens in all layers of one model, so that copying,
swapping and spilling a block is one copy of contiguous bytes. Every model sees the same arena through views of its own
shape; the blocks of a model smaller than the largest are not filled to their end. The arena, the host tier and the
disk tier are as large as they were asked to be, from the start and for ever.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from services.worker.engines.torch_engine.blocks import Move, Place, Tier
from services.worker.engines.torch_engine.config import ModelConfig

_ALIGNMENT = 64  # bytes; a cache line, and more than any element


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block of this model."""
    exact = config.layers * 2 * block_size * config.kv_heads * config.head_width * dtype.itemsize
    return -(-exact // _ALIGNMENT) * _ALIGNMENT


class KvMemory:
    """Blocks 0 … total_blocks-1, and one more that nobody writes: padding points there.

    The arena starts as zeros (pages that are never touched cost nothing), because memory that a sequence does not own
    may be read and masked, and 0 × NaN is NaN. For the same reason a failed sequence's blocks are cleared.
    """

    def __init__(
        self,
        *,
        bytes_per_block: int,
        total_blocks: int,
        host_blocks: int = 0,
        disk_blocks: int = 0,
        disk_folder: Path | None = None,
        device: torch.device | None = None,
    ) -> None:
        """:raises OSError: the file of the disk tier cannot be made."""
        device = device or torch.device("cpu")
        self.spare = total_blocks
        self.bytes_per_block = bytes_per_block
        self._arena = torch.zeros((total_blocks + 1, bytes_per_block), dtype=torch.uint8, device=device)
        on_gpu = device.type == "cuda"
        self._host = torch.zeros((host_blocks, bytes_per_block), dtype=torch.uint8, pin_memory=on_gpu)
        self._staging = torch.zeros(bytes_per_block, dtype=torch.uint8, pin_memory=on_gpu)
        self._disk = _DiskTier(disk_folder, disk_blocks, bytes_per_block) if disk_blocks else None

    @property
    def nbytes(self) -> int:
        """Bytes of the arena and the host tier."""
        return self._arena.nbytes + self._host.nbytes

    def layers(self, config: ModelConfig, block_size: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """A model's keys and values per layer, each (blocks, block_size, kv_heads, head_width), as views."""
        shape = (config.layers, 2, block_size, config.kv_heads, config.head_width)
        count = config.layers * 2 * block_size * config.kv_heads * config.head_width
        typed = self._arena.view(dtype)[:, :count].unflatten(1, shape)
        return [(typed[:, layer, 0], typed[:, layer, 1]) for layer in range(config.layers)]

    def carry_out(self, moves: Iterable[Move]) -> None:
        """Copy blocks, in the given order."""
        for move in moves:
            source, target = move.source, move.target
            if target[0] is Tier.DISK:
                self._to_disk(source, target[1])
            elif source[0] is Tier.DISK:
                if self._disk is not None:
                    self._disk.read(source[1], self._staging)
                self._bytes(target).copy_(self._staging)
            else:
                self._bytes(target).copy_(self._bytes(source), non_blocking=True)

    def intact(self, slot: int) -> bool:
        """Whether a disk block still holds what was written to it."""
        return self._disk is not None and self._disk.intact(slot, self._staging)

    def clear(self, blocks: Sequence[int]) -> None:
        """Overwrite device blocks with zeros."""
        self._arena[list(blocks)] = 0

    def close(self) -> None:
        """Give the disk tier back. The tensors go with their last user."""
        if self._disk is not None:
            self._disk.close()

    def _to_disk(self, source: Place, slot: int) -> None:
        if self._disk is None:
            return
        self._staging.copy_(self._bytes(source))
        self._disk.write(slot, self._staging)

    def _bytes(self, place: Place) -> Tensor:
        tier, number = place
        return self._arena[number] if tier is Tier.DEVICE else self._host[number]


class ModelKv:
    """One model's view of the arena, for the forward pass."""

    def __init__(self, memory: KvMemory, config: ModelConfig, *, block_size: int, dtype: torch.dtype) -> None:
        self.block_size = block_size
        self.spare = memory.spare
        self._layers = memory.layers(config, block_size, dtype)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store (n, kv_heads, head_width) keys and values at flat `slots` (n,): block · block_size + place."""
        blocks, places = slots // self.block_size, slots % self.block_size
        self._layers[layer][0][blocks, places] = keys
        self._layers[layer][1][blocks, places] = values

    def read(self, layer: int, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Gather the blocks of `tables` (n, blocks): keys and values, each (n, kv_heads, blocks·block_size,
        head_width)."""
        keys, values = (part[tables].flatten(1, 2).transpose(1, 2) for part in self._layers[layer])
        return keys, values


class _DiskTier:
    """Slots in one file that has no name: it vanishes with the process, and nobody else can open it."""

    def __init__(self, folder: Path | None, slots: int, size: int) -> None:
        # Open for the tier's whole life.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0, prefix="kv-")  # noqa: SIM115
        os.ftruncate(self._file.fileno(), slots * size)
        self._size = size
        self._digests: dict[int, bytes] = {}

    def write(self, slot: int, block: Tensor) -> None:
        """Store a block (bytes,). A block that cannot be written, the disk being full, will not be intact."""
        content = block.numpy().data
        self._digests.pop(slot, None)
        try:
            written = os.pwrite(self._file.fileno(), content, slot * self._size)
        except OSError:
            return
        if written == self._size:
            self._digests[slot] = _digest(content)

    def read(self, slot: int, into: Tensor) -> bool:
        """Fill a block (bytes,); whether all of it could be read."""
        try:
            return os.preadv(self._file.fileno(), [into.numpy().data], slot * self._size) == self._size
        except OSError:
            return False

    def intact(self, slot: int, staging: Tensor) -> bool:
        """Whether the slot reads back as it was written."""
        wanted = self._digests.get(slot)
        return wanted is not None and self.read(slot, staging) and _digest(staging.numpy().data) == wanted

    def close(self) -> None:
        """Give the space back."""
        self._file.close()


def _digest(content: memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
