"""Which KV block holds what: free lists, reference counts, the prefix cache and its lower tiers.

Pure bookkeeping: it moves no bytes. What has to be moved is written into a list of `Move`s, in the order in which the
moves must happen; whoever holds the memory (kv.py) carries them out before the next forward pass.

A device block is in exactly one of three states: *free* (its content is worthless), *used* (reference count above 0),
*cached* (count 0, but it holds a whole block of tokens under a digest that a later prompt may ask for). Cached blocks
count as free: they are given away, least recently used first, when nothing else is left; what they hold then moves
down to host memory, and from there to disk, as long as those tiers have room.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from services.worker.engines.torch_engine.spill import IntegrityError, Spill


class Tier(enum.IntEnum):
    """Where a block of keys and values lies."""

    DEVICE = 0
    HOST = 1
    DISK = 2


Place = tuple[Tier, int]
"""A block number within a tier."""


@dataclass(frozen=True, slots=True)
class Move:
    """Copy one block's bytes from `source` to `target`."""

    source: Place
    target: Place


class BlockManager:
    """Hands out device blocks 0 … total-1 and remembers what cached ones hold.

    `intact(slot)` answers whether a disk block still holds what was written to it; one that does not is dropped and
    the prompt computed anew. `owner_cap` bounds the cached device blocks of one owner (a tenant's salt), so that one
    tenant's prompts cannot push out everybody else's.
    """

    def __init__(
        self,
        total: int,
        *,
        host: int = 0,
        disk: int = 0,
        owner_cap: int | None = None,
        intact: Callable[[int], bool] = lambda slot: True,
    ) -> None:
        self._total = total
        self._owner_cap = total if owner_cap is None else owner_cap
        self._free = list(range(total - 1, -1, -1))
        self._refs = [0] * total
        self._digest: list[bytes | None] = [None] * total
        self._owner: list[bytes] = [b""] * total
        self._by_digest: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._cached_by_owner: dict[bytes, OrderedDict[int, None]] = {}
        self._ask_intact = intact
        self._spill = Spill(host=host, disk=disk, intact=self._intact)
        self._moves: list[Move] = []

    # ---- questions ------------------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """How many device blocks there are."""
        return self._total

    @property
    def free(self) -> int:
        """Device blocks that `allocate` can give, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        """Device blocks that nobody uses but that hold a reusable prefix."""
        return len(self._cached)

    @property
    def spilled(self) -> int:
        """Blocks kept in host memory and on disk."""
        return self._spill.used

    def users(self, block: int) -> int:
        """How many sequences use the block: writing one of several takes a copy."""
        return self._refs[block]

    def probe(self, digests: Iterable[bytes], unused: Container[int] = ()) -> tuple[int, int]:
        """How many leading digests are kept in any tier, and how many device blocks taking them leaves fewer, if nobody
        used those that are `unused` then."""
        found = cost = 0
        for digest in digests:
            block = self._by_digest.get(digest)
            if block is None and digest not in self._spill:
                break
            found += 1
            cost += block is None or self._refs[block] == 0 or block in unused
        return found, cost

    # ---- commands -------------------------------------------------------------------------------------------------

    def acquire(self, digests: Sequence[bytes], owner: bytes = b"", *, public: int = 0) -> list[int]:
        """Use the longest cached prefix of `digests`; blocks of lower tiers are brought up, the first `public` of them
        as nobody's. May return fewer blocks than `probe` promised: a damaged or pushed-out block ends the prefix."""
        # Those on the device are taken first: bringing others up must not push them out.
        blocks = list[int]()
        for digest in digests:
            block = self._by_digest.get(digest)
            if block is None:
                break
            self._use(block)
            blocks.append(block)
        self._spill.touch(digests[len(blocks) :])
        for digest in digests[len(blocks) :]:
            block = self._by_digest.get(digest)
            if block is not None:
                self._use(block)
            elif digest in self._spill and self.free:
                # In this order: making room may push blocks down into the slot that `take` gives up.
                block = self._allocate_one()
                slot = self._spill.take(digest)
                if slot is None:
                    self.release([block])
                    break
                self._moves.append(Move(_place(slot), (Tier.DEVICE, block)))
                self.seal(block, digest, b"" if len(blocks) < public else owner)
            else:
                break
            blocks.append(block)
        return blocks

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks of undefined content.

        :raises MemoryError: fewer are free; nothing is taken.
        """
        if count > self.free:
            raise MemoryError(f"{count} blocks asked, {self.free} free")
        return [self._allocate_one() for _ in range(count)]

    def share(self, blocks: Iterable[int]) -> list[int]:
        """Use blocks that somebody uses already."""
        blocks = list(blocks)
        for block in blocks:
            if not self._refs[block]:
                raise IntegrityError(f"block {block} is shared but not used")
            self._refs[block] += 1
        return blocks

    def writable(self, block: int) -> int:
        """A block with the content of `block` that its caller alone may write: itself, or a copy that replaces it.

        :raises MemoryError: a copy is needed and no block is free.
        """
        if self._refs[block] == 1:
            self._forget(block)
            return block
        [copy] = self.allocate(1)
        self._moves.append(Move((Tier.DEVICE, block), (Tier.DEVICE, copy)))
        self.release([block])
        return copy

    def seal(self, block: int, digest: bytes, owner: bytes = b"") -> None:
        """Declare that a used block now holds the whole block of tokens that `digest` names. When another block holds
        the same already, this one stays unnamed and is simply freed later."""
        if self._digest[block] is None and digest not in self._by_digest:
            self._digest[block] = digest
            self._owner[block] = owner
            self._by_digest[digest] = block

    def release(self, blocks: Sequence[int]) -> None:
        """Stop using blocks, given in the order of a sequence's tokens. Named ones stay cached, the prefix's end to
        be given away before its beginning.

        :raises IntegrityError: one of them is not used.
        """
        for block in reversed(blocks):
            if not self._refs[block]:
                raise IntegrityError(f"block {block} is released but not used")
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            if self._digest[block] is None:
                self._free.append(block)
            else:
                self._cache(block)

    def purge(self, tag: bytes) -> None:
        """Forget, in every tier, what lies under digests that begin with `tag`. Blocks in use stay with their users and
        are given to nobody else."""
        for digest in [each for each in self._by_digest if each.startswith(tag)]:
            block = self._by_digest[digest]
            if not self._refs[block]:
                self._uncache(block)
                self._free.append(block)
            self._forget(block)
        self._spill.purge(tag)

    def swap_out(self, blocks: Sequence[int]) -> list[Place] | None:
        """Move a sequence's blocks to lower tiers and stop using them; None (and no change) if those lack room.
        The copies are the caller's own until `swap_in` or `drop`."""
        slots = self._spill.pin(len(blocks), self._moved)
        if slots is None:
            return None
        places = [_place(slot) for slot in slots]
        self._moves += [Move((Tier.DEVICE, block), place) for block, place in zip(blocks, places, strict=True)]
        self.release(blocks)
        return places

    def swap_in(self, places: Sequence[Place]) -> list[int] | None:
        """Bring a swapped sequence back. None when one of its blocks is damaged: all of them are given up then.

        :raises MemoryError: too few blocks are free; nothing is changed.
        """
        if not all(self._intact(slot) for tier, slot in places if tier is Tier.DISK):
            self.drop(places)
            return None
        blocks = self.allocate(len(places))
        self._moves += [Move(place, (Tier.DEVICE, block)) for block, place in zip(blocks, places, strict=True)]
        self.drop(places)
        return blocks

    def drop(self, places: Iterable[Place]) -> None:
        """Give a swapped sequence's lower blocks back."""
        self._spill.unpin((int(tier), slot) for tier, slot in places)

    def take_moves(self) -> list[Move]:
        """The moves since the last call, in order."""
        moves, self._moves = self._moves, []
        return moves

    def check_integrity(self, users: Iterable[Sequence[int]], swapped: Iterable[Sequence[Place]] = ()) -> None:
        """Compare everything with everything. `users` are the block lists of all live sequences, `swapped` the lower
        places of all swapped ones. Costs time in proportion to all blocks: for idle moments and tests.

        :raises IntegrityError: something does not add up.
        """
        counted = [0] * self._total
        for blocks in users:
            for block in blocks:
                counted[block] += 1
        if counted != self._refs:
            wrong = [block for block in range(self._total) if counted[block] != self._refs[block]]
            raise IntegrityError(f"blocks {wrong[:8]} are used other than their count says")
        free = set(self._free)
        used = {block for block in range(self._total) if self._refs[block]}
        if len(free) != len(self._free) or len(free) + len(used) + len(self._cached) != self._total:
            raise IntegrityError("a block is lost or in two states")
        if free & used or free & self._cached.keys() or used & self._cached.keys():
            raise IntegrityError("a block is in two states")
        named = {self._digest[block]: block for block in range(self._total) if self._digest[block] is not None}
        if named != self._by_digest or any(self._digest[block] is not None for block in free):
            raise IntegrityError("the digests do not match the blocks")
        by_owner = {block for blocks in self._cached_by_owner.values() for block in blocks}
        if by_owner != self._cached.keys():
            raise IntegrityError("the cached blocks do not match their owners")
        self._spill.check([(int(tier), slot) for places in swapped for tier, slot in places])

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _allocate_one(self) -> int:
        block = self._free.pop() if self._free else self._evict(next(iter(self._cached)))
        self._refs[block] = 1
        return block

    def _use(self, block: int) -> None:
        if not self._refs[block]:
            self._uncache(block)
        self._refs[block] += 1

    def _cache(self, block: int) -> None:
        self._cached[block] = None
        mine = self._cached_by_owner.setdefault(self._owner[block], OrderedDict())
        mine[block] = None
        if len(mine) > self._owner_cap:
            self._free.append(self._evict(next(iter(mine))))

    def _uncache(self, block: int) -> None:
        del self._cached[block]
        mine = self._cached_by_owner[self._owner[block]]
        del mine[block]
        if not mine:
            del self._cached_by_owner[self._owner[block]]

    def _evict(self, block: int) -> int:
        """Empty a cached block, moving what it holds down."""
        self._uncache(block)
        digest = self._digest[block]
        if digest is not None and (slot := self._spill.put(digest, self._moved)) is not None:
            self._moves.append(Move((Tier.DEVICE, block), _place(slot)))
        self._forget(block)
        return block

    def _forget(self, block: int) -> None:
        digest = self._digest[block]
        if digest is not None:
            del self._by_digest[digest]
            self._digest[block] = None

    def _intact(self, slot: int) -> bool:
        """Whether a disk block holds what it should. One that is still to be written cannot be looked at, and what
        it held before says nothing: it counts as damaged."""
        return all(move.target != (Tier.DISK, slot) for move in self._moves) and self._ask_intact(slot)

    def _moved(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        self._moves.append(Move(_place(source), _place(target)))


def _place(slot: tuple[int, int]) -> Place:
    return Tier(slot[0]), slot[1]
