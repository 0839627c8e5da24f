"""Who holds more of the memory than its share while others want it. Pure.

A tenant (by its cache salt) holds the blocks of its running sequences; one sequence it may always run. `owner_share`
bounds every tenant at all times. `SequenceRequest.kv_share` (its grant's) gives way to idleness and to classes: memory
that nobody else wants is used, and what counts is what sequences of the same or a more urgent priority want. Whoever
was granted more than its share on the strength of what it seemed to need

- has no further sequence join while another tenant that is within its own share has one waiting (`keeps_out`), and
- gives up its least urgent sequences, down to its share, before anybody else of their priority is preempted (`excess`).

Tenants beyond their shares do not stop each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Set

from services.worker.engines.torch_engine.sequences import LiveSequence

_NONE: frozenset[bytes] = frozenset()


class Shares:
    """Of `total` blocks."""

    def __init__(self, total: int, owner_share: float) -> None:
        self._total = total
        self._most = int(total * owner_share)
        self._live: Counter[tuple[bytes, int]] = Counter()  # sequences that have not ended, by salt and priority
        self._shares: dict[bytes, float] = {}  # of salts that have one, as it was told last
        self._kept: set[bytes] = set()

    def joined(self, sequence: LiveSequence) -> None:
        """A sequence was taken in."""
        salt, share = sequence.request.cache_salt, sequence.request.kv_share
        self._live[salt, sequence.request.priority] += 1
        if 0.0 < share < 1.0:
            self._shares[salt] = share
        else:
            self._shares.pop(salt, None)

    def ended(self, sequence: LiveSequence) -> None:
        """It is no more."""
        key = sequence.request.cache_salt, sequence.request.priority
        self._live[key] -= 1
        if not self._live[key]:
            del self._live[key]
            if all(salt != key[0] for salt, _ in self._live):
                self._shares.pop(key[0], None)
                self._kept.discard(key[0])

    def excess(
        self, running: Collection[LiveSequence], waiting: LiveSequence | None = None, blocks: int = 0
    ) -> Set[int]:
        """Handles of the running sequences without which every tenant would be within its share. None for one that is
        `waiting`, of so many blocks, if its own tenant would not be: two such would take the room from each other for
        ever."""
        if not self._shares:
            return frozenset()
        if waiting is not None:
            salt = waiting.request.cache_salt
            held = sum(len(each.blocks) for each in running if each.request.cache_salt == salt)
            if held + blocks > self._bound(salt):
                return frozenset()
        of: dict[bytes, list[LiveSequence]] = {}
        for each in running:
            if each.request.cache_salt in self._shares:
                of.setdefault(each.request.cache_salt, []).append(each)
        found: set[int] = set()
        for salt, sequences in of.items():
            over = sum(len(each.blocks) for each in sequences) - self._bound(salt)
            for each in sorted(sequences, key=lambda one: one.urgency)[:0:-1] if over > 0 else ():
                found.add(each.request.handle)
                over -= len(each.blocks)
                if over <= 0:
                    break
        return found

    def keeps_out(self, sequence: LiveSequence, blocks: int, running: Iterable[LiveSequence]) -> bool:
        """Whether its tenant would hold more than it may with this sequence, of so many blocks."""
        salt = sequence.request.cache_salt
        if salt not in self._shares and self._most >= self._total:
            return False
        held, count = _sums(running)
        if salt not in held:
            return False
        if held[salt] + blocks > self._most:
            return True
        if held[salt] + blocks <= self._bound(salt) or not self._wanted(held, count, sequence.request.priority, salt):
            return False
        self._kept.add(salt)
        return True

    def prompts_beyond(self, sequences: Iterable[LiveSequence], size: int) -> int:
        """Prompt tokens of waiting sequences that would bring their tenant beyond its share: nobody else waits for
        those. `sequences` are all that live, `size` tokens are a block."""
        if not self._shares:
            return 0
        sequences = [each for each in sequences if each.request.cache_salt in self._shares]
        held, _ = _sums(each for each in sequences if each.row >= 0)
        return sum(
            each.pending_prompt
            for each in sequences
            if each.row < 0
            and (salt := each.request.cache_salt) in held
            and held[salt] - (-len(each.tokens) // size) > self._bound(salt)
        )

    def let_in(self, running: Iterable[LiveSequence]) -> Set[bytes]:
        """Tenants that were kept out for others, and are no more."""
        if not self._kept or self._wanted(*_sums(running)):
            return _NONE
        freed, self._kept = self._kept, set()
        return freed

    def _bound(self, salt: bytes) -> float:
        return self._shares.get(salt, 1.0) * self._total

    def _wanted(
        self, held: Counter[bytes], running: Counter[tuple[bytes, int]], priority: int | None = None, by: bytes = b""
    ) -> bool:
        """Whether a tenant within its share waits: other than `by`, and with `priority` or more urgently, if told."""
        return any(
            live > running[key]
            and key[0] not in self._kept
            and held[key[0]] < self._bound(key[0])
            and (priority is None or (key[1] <= priority and key[0] != by))
            for key, live in self._live.items()
        )


def _sums(running: Iterable[LiveSequence]) -> tuple[Counter[bytes], Counter[tuple[bytes, int]]]:
    """Blocks by salt, sequences by salt and priority."""
    held: Counter[bytes] = Counter()
    count: Counter[tuple[bytes, int]] = Counter()
    for each in running:
        held[each.request.cache_salt] += len(each.blocks)
        count[each.request.cache_salt, each.request.priority] += 1
    return held, count
