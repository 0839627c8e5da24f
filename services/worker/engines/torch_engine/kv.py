"""The memory of keys and values: one arena of equal blocks for all models, and the tiers below it.

A block holds the keys and values of `block_size` successive tokens in all layers of one model, so that copying,
swapping and spilling a block is one copy of contiguous bytes. Every model sees the same arena through views of its own
shape; the blocks of a model smaller than the largest are not filled to their end. All tiers keep their number of
blocks; a model of larger blocks that comes later makes all of them wider. The place of a token within a block is
attention.py's business.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from libs.families import ModelConfig
from services.worker.engines.torch_engine.blocks import Move, Place, Tier

_ALIGNMENT = 64  # bytes; a cache line


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What one block of a model holds: (layers, 2, kv_heads, block_size, head_width), keys at 0, values at 1."""

    config: ModelConfig
    block_size: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that are used of a block."""
        config = self.config
        return 2 * config.layers * self.block_size * config.kv_heads * config.head_width * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's keys of one head: every block begins at a multiple of it."""
        return self.config.head_width * self.dtype.itemsize


def bytes_per_block(shapes: Iterable[BlockShape]) -> int:
    """The size of a block that can serve any of these models."""
    shapes = list(shapes)
    unit = math.lcm(_ALIGNMENT, *(shape.row_bytes for shape in shapes))
    return -(-max(shape.nbytes for shape in shapes) // unit) * unit


def _zeros(blocks: int, size: int, *, device: torch.device | None = None, pinned: bool = False) -> Tensor:
    """Blocks of `size` bytes. torch would write every byte of them and so take all of the memory at once: where it is
    the process's own, the kernel gives a page when it is first touched.

    :raises OSError: there is no such memory.
    """
    whole = blocks * size
    if pinned or not whole or (device is not None and device.type != "cpu"):
        return torch.zeros((blocks, size), dtype=torch.uint8, device=device, pin_memory=pinned)
    pages = mmap.mmap(-1, whole, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8).view(blocks, size)


class KvMemory:
    """Blocks 0 … total_blocks-1. On a CPU, pages of the arena that are never touched cost nothing."""

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
        self.bytes_per_block = bytes_per_block
        self._arena = _zeros(total_blocks, bytes_per_block, device=device)
        on_gpu = device.type == "cuda"
        self._host = _zeros(host_blocks, bytes_per_block, pinned=on_gpu)
        self._staging = torch.zeros(bytes_per_block, dtype=torch.uint8, pin_memory=on_gpu)
        self._disk_folder = disk_folder
        self._disk = _DiskTier(disk_folder, disk_blocks, bytes_per_block) if disk_blocks else None

    def widen(self, bytes_per_block: int) -> None:
        """Make every block this large and keep what it holds; between two steps. Users of `arena` must ask for it
        again.

        :raises OSError: the disk tier cannot be made anew.
        :raises RuntimeError: there is no memory for both arenas at once.
        """
        before = self.bytes_per_block
        arena, host = (
            _zeros(len(tier), bytes_per_block, device=tier.device, pinned=tier.is_pinned())
            for tier in (self._arena, self._host)
        )
        staging = torch.zeros(bytes_per_block, dtype=torch.uint8, pin_memory=self._staging.is_pinned())
        disk = self._disk.widened(self._disk_folder, bytes_per_block) if self._disk is not None else None
        arena[:, :before] = self._arena
        host[:, :before] = self._host
        if self._disk is not None:
            self._disk.close()
        self.bytes_per_block = bytes_per_block
        self._arena, self._host, self._staging, self._disk = arena, host, staging, disk

    @property
    def host_blocks(self) -> int:
        """Blocks of the host tier."""
        return len(self._host)

    @property
    def disk_blocks(self) -> int:
        """Blocks of the disk tier."""
        return self._disk.slots if self._disk is not None else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the arena and the host tier."""
        return self._arena.nbytes + self._host.nbytes

    def arena(self, dtype: torch.dtype) -> Tensor:
        """All blocks as numbers: (blocks, numbers per block), contiguous; a model uses the first numbers of each
        row."""
        return self._arena.view(dtype)

    def carry_out(self, moves: Iterable[Move]) -> None:
        """Copy blocks, in the given order.

        :raises OSError: the disk does not give back a block that was intact a moment ago.
        """
        for move in moves:
            source, target = move.source, move.target
            if target[0] is Tier.DISK:
                self._to_disk(source, target[1])
            elif source[0] is Tier.DISK:
                if self._disk is None or not self._disk.read(source[1], self._staging):
                    raise OSError(f"block {source[1]} of the disk tier cannot be read")
                self._bytes(target).copy_(self._staging)
            else:
                self._bytes(target).copy_(self._bytes(source), non_blocking=True)

    def intact(self, slot: int) -> bool:
        """Whether a disk block still holds what was written to it."""
        return self._disk is not None and self._disk.intact(slot, self._staging)

    def close(self) -> None:
        """Give the disk tier back. The tensors go with their last user."""
        if self._disk is not None:
            self._disk.close()

    def _to_disk(self, source: Place, slot: int) -> None:
        if self._disk is None:
            return
        if self._arena.is_cuda:
            torch.cuda.current_stream().synchronize()  # a copy into the host block may still be under way
        self._staging.copy_(self._bytes(source))
        self._disk.write(slot, self._staging)

    def _bytes(self, place: Place) -> Tensor:
        tier, number = place
        return self._arena[number] if tier is Tier.DEVICE else self._host[number]


class _DiskTier:
    """Slots in one file that has no name: it vanishes with the process, and nobody else can open it."""

    def __init__(self, folder: Path | None, slots: int, size: int) -> None:
        # Open for the tier's whole life.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0, prefix="kv-")  # noqa: SIM115
        os.ftruncate(self._file.fileno(), slots * size)
        self.slots = slots
        self._size = size
        self._digests: dict[int, bytes] = {}

    def widened(self, folder: Path | None, size: int) -> _DiskTier:
        """A tier of larger slots with the same content at their beginnings; what cannot be read is not intact there."""
        wider = _DiskTier(folder, self.slots, size)
        block = torch.zeros(size, dtype=torch.uint8)
        for slot in self._digests:
            if self.intact(slot, block[: self._size]):
                wider.write(slot, block)
        return wider

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
