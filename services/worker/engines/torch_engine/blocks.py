"""Which KV blocks are free. Pure bookkeeping; the memory itself is in kv.py."""

from __future__ import annotations

from collections.abc import Sequence


class BlockPool:
    """Hands out block numbers 0 … total-1. A block has at most one owner."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._free = list(range(total - 1, -1, -1))
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        """How many blocks nobody owns."""
        return len(self._free)

    @property
    def total(self) -> int:
        """How many blocks there are."""
        return self._total

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(count)` would succeed."""
        return count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks.

        :raises MemoryError: fewer are free; nothing is taken.
        """
        if not self.can_allocate(count):
            raise MemoryError(f"{count} blocks asked, {len(self._free)} free")
        blocks = [self._free.pop() for _ in range(count)]
        self._taken.update(blocks)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Give blocks back.

        :raises ValueError: one of them is not taken; nothing is given back.
        """
        if len(set(blocks)) != len(blocks) or not self._taken.issuperset(blocks):
            raise ValueError("a block was released that is not taken")
        self._taken.difference_update(blocks)
        self._free.extend(reversed(blocks))
