"""The tiers below the device: host memory, then disk. Pure bookkeeping, as in blocks.py.

A slot is *cached* (it holds a block of tokens under its digest and may be given away, least recently used first) or
*pinned* (it belongs to a sequence that was swapped out). Content enters at the top; what the host tier gives away
moves to disk, what the disk gives away is gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

HOST, DISK = 1, 2
Slot = tuple[int, int]
"""Tier number and slot number."""

Moved = Callable[[Slot, Slot], None]
"""Told of every copy between lower tiers, in order."""


class IntegrityError(RuntimeError):
    """The bookkeeping contradicts itself; the message says where."""


class _Tier:
    def __init__(self, number: int, slots: int) -> None:
        self.number = number
        self.capacity = slots
        self.free = list(range(slots - 1, -1, -1))
        self.cached: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self.pinned: set[int] = set()

    @property
    def available(self) -> int:
        return len(self.free) + len(self.cached)


class Spill:
    """Slots of both tiers. `intact(slot)` checks a disk slot before its content is used."""

    def __init__(self, *, host: int, disk: int, intact: Callable[[int], bool]) -> None:
        self._host = _Tier(HOST, host)
        self._disk = _Tier(DISK, disk)
        self._tiers = [tier for tier in (self._host, self._disk) if tier.capacity]
        self._intact = intact

    @property
    def capacity(self) -> int:
        """Slots of all tiers."""
        return sum(tier.capacity for tier in self._tiers)

    @property
    def used(self) -> int:
        """Slots that hold something."""
        return sum(tier.capacity - len(tier.free) for tier in self._tiers)

    def __contains__(self, digest: bytes) -> bool:
        return any(digest in tier.cached for tier in self._tiers)

    def put(self, digest: bytes, moved: Moved) -> Slot | None:
        """A slot in the highest tier for a block under `digest`; None when it is kept already or there is no room."""
        if not self._tiers or digest in self:
            return None
        slot = self._slot(0, moved)
        if slot is not None:
            tier = self._tiers[0]
            tier.cached[digest] = slot
            return tier.number, slot
        return None

    def touch(self, digests: Iterable[bytes]) -> None:
        """They are about to be taken: when room is made meanwhile, others go first."""
        for digest in digests:
            for tier in self._tiers:
                if digest in tier.cached:
                    tier.cached.move_to_end(digest)

    def take(self, digest: bytes) -> Slot | None:
        """Give up the slot that holds `digest` (its content must be copied before anything else is put); None if no
        tier holds it undamaged."""
        for tier in self._tiers:
            slot = tier.cached.pop(digest, None)
            if slot is None:
                continue
            tier.free.append(slot)
            return (tier.number, slot) if tier is not self._disk or self._intact(slot) else None
        return None

    def purge(self, tag: bytes) -> None:
        """Forget cached blocks whose digests begin with `tag`."""
        for tier in self._tiers:
            for digest in [each for each in tier.cached if each.startswith(tag)]:
                tier.free.append(tier.cached.pop(digest))

    def pin(self, count: int, moved: Moved) -> list[Slot] | None:
        """`count` slots that belong to the caller, in the highest tiers that have room; None if there is not enough."""
        if count > sum(tier.available for tier in self._tiers):
            return None
        slots = list[Slot]()
        for index, tier in enumerate(self._tiers):
            while len(slots) < count and tier.available:
                slot = self._slot(index, moved)
                if slot is None:
                    break
                tier.pinned.add(slot)
                slots.append((tier.number, slot))
        return slots

    def unpin(self, slots: Iterable[Slot]) -> None:
        """Give pinned slots back."""
        for number, slot in slots:
            tier = self._host if number == HOST else self._disk
            tier.pinned.remove(slot)
            tier.free.append(slot)

    def check(self, pinned: Sequence[Slot]) -> None:
        """:raises IntegrityError: a slot is lost, in two states, or pinned other than `pinned` says."""
        for tier in (self._host, self._disk):
            wanted = {slot for number, slot in pinned if number == tier.number}
            if wanted != tier.pinned:
                raise IntegrityError(f"tier {tier.number}: pinned slots differ")
            kept = [*tier.free, *tier.cached.values(), *tier.pinned]
            if sorted(kept) != list(range(tier.capacity)):
                raise IntegrityError(f"tier {tier.number}: a slot is lost or in two states")
        if self._host.cached.keys() & self._disk.cached.keys():
            raise IntegrityError("a block is kept in two tiers")

    def _slot(self, index: int, moved: Moved) -> int | None:
        """An empty slot of tier `index`; what it held moves down. None if all are pinned."""
        tier = self._tiers[index]
        if tier.free:
            return tier.free.pop()
        if not tier.cached:
            return None
        digest, slot = tier.cached.popitem(last=False)
        if index + 1 < len(self._tiers) and (below := self._slot(index + 1, moved)) is not None:
            lower = self._tiers[index + 1]
            lower.cached[digest] = below
            moved((tier.number, slot), (lower.number, below))
        return slot
