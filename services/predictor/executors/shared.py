"""Tensors in memory that two processes see: one writes, the other reads, and a message says what lies where.

The memory is a memfd, so it goes with the processes, counts as theirs, and is not bounded by /dev/shm (64 MB in a
container). It is sealed against shrinking: a process that lost its senses cannot end the other one with SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

_ALIGN = 64
_FIRST_BYTES = 1 << 16
KEPT_BYTES = 1 << 24
"""What a large batch took beyond this goes back to the kernel after it."""


class Placed(msgspec.Struct, array_like=True, frozen=True):
    """Where an array lies. Of BYTES (dtype "O") there are the lengths as int64, then all bytes in a row."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Garbled(Exception):
    """What the other process said cannot be."""


class Arena:
    """One direction between two processes; it is freed with the last who has it or a view of it.

    :ivar fd: for the other process.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None
        self._end = 0
        weakref.finalize(self, os.close, fd)  # not before a thread that copies is done

    @classmethod
    def create(cls) -> Arena:
        """A new one."""
        arena = cls(os.memfd_create("weir-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fcntl.fcntl(arena.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return arena

    # ---- the writer ------------------------------------------------------------------------------------------------

    def write(self, arrays: Mapping[str, Sequence[np.ndarray]]) -> list[Placed]:
        """By name, each one's arrays behind one another; what was written before is gone."""
        self._end = 0
        self._reserve(sum(_size(parts) + _ALIGN for parts in arrays.values()))
        return [self._write(name, parts) for name, parts in arrays.items()]

    def trim(self) -> None:
        """Everything was read: give back what is much."""
        if self._map is not None and self._end > KEPT_BYTES:
            self._map.madvise(mmap.MADV_REMOVE, KEPT_BYTES, len(self._map) - KEPT_BYTES)

    def _write(self, name: str, parts: Sequence[np.ndarray]) -> Placed:
        first = parts[0]
        shape = first.shape if len(parts) == 1 else (sum(map(len, parts)), *first.shape[1:])
        start = self._end = -(-self._end // _ALIGN) * _ALIGN
        if first.dtype == object:
            texts = [text for part in parts for text in part.reshape(-1)]
            self._put(np.fromiter(map(len, texts), np.int64, len(texts)))
            self._put(np.frombuffer(b"".join(texts), np.uint8))
        else:
            self._put(*parts)
        return Placed(name, "O" if first.dtype == object else first.dtype.str, shape, start, self._end - start)

    def _put(self, *parts: np.ndarray) -> None:
        for part in parts:
            if part.nbytes:
                into = np.frombuffer(self._map or b"", part.dtype, part.size, self._end)
                np.copyto(into.reshape(part.shape), part)
                self._end += part.nbytes

    def _reserve(self, size: int) -> None:
        held = len(self._map) if self._map is not None else 0
        if self._map is None or size > held:
            held = max(_FIRST_BYTES, 2 * held, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
            os.ftruncate(self.fd, held)
            self._map = mmap.mmap(self.fd, held)

    # ---- the reader ------------------------------------------------------------------------------------------------

    def read(self, placed: Sequence[Placed], *, copy: bool) -> dict[str, np.ndarray]:
        """The arrays; views, which hold until the writer writes again, where not copied. BYTES are always copied.

        :raises Garbled: they do not lie in the memory, or are not what arrays are.
        """
        end = max((one.offset + one.nbytes for one in placed), default=0)
        if self._map is None or end > len(self._map):
            size = os.fstat(self.fd).st_size
            if end > size or not size:
                raise Garbled("tensors outside of the shared memory")
            self._map = mmap.mmap(self.fd, size)
        try:
            return {one.name: self._read(self._map, one, copy=copy) for one in placed}
        except (ValueError, TypeError) as error:
            raise Garbled(f"tensors that are none: {type(error).__name__}") from None

    def _read(self, memory: mmap.mmap, placed: Placed, *, copy: bool) -> np.ndarray:
        if min(placed.offset, placed.nbytes, *placed.shape, 0) < 0:
            raise Garbled("negative sizes")
        size = int(np.prod(placed.shape, dtype=object)) if placed.shape else 1
        if placed.dtype == "O":
            return _texts(memory, placed, size)
        dtype = np.dtype(placed.dtype)
        if dtype.hasobject or size * dtype.itemsize != placed.nbytes:
            raise Garbled("a size that is not the shape's")
        if not size:
            return np.empty(placed.shape, dtype)
        array = np.frombuffer(memory, dtype, size, placed.offset).reshape(placed.shape)
        return array.copy() if copy else array


def _texts(memory: mmap.mmap, placed: Placed, size: int) -> np.ndarray:
    if size * 8 > placed.nbytes:
        raise Garbled("a size that is not the shape's")
    array = np.empty(size, object)
    if size:
        lengths = np.frombuffer(memory, np.int64, size, placed.offset).tolist()
        if min(lengths) < 0 or sum(lengths) != placed.nbytes - size * 8:
            raise Garbled("lengths that are not the texts'")
        start = placed.offset + size * 8
        for n, length in enumerate(lengths):
            array[n] = memory[start : start + length]
            start += length
    return array.reshape(placed.shape)


def _size(parts: Sequence[np.ndarray]) -> int:
    if parts[0].dtype == object:
        return sum(8 + len(text) for part in parts for text in part.reshape(-1))
    return sum(part.nbytes for part in parts)
