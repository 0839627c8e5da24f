"""The waiting line of sequences: who is next, who has been put aside, whose time is up. Pure."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence

from services.worker.engines.torch_engine.sequences import LiveSequence

_Entry = tuple[float, int, LiveSequence]


class Line:
    """Sequences by priority, then arrival. Those that have ended are skipped wherever they are met.

    One that does not fit may be overtaken by sequences up to `lookahead` places behind it, `max_overtaken` times in
    all: a large sequence would otherwise wait for ever behind small ones.
    """

    def __init__(self, *, lookahead: int, max_overtaken: int) -> None:
        self._lookahead = lookahead
        self._max_overtaken = max_overtaken
        self._queue: list[_Entry] = []  # heap by (priority, arrival)
        self._deadlines: list[_Entry] = []  # heap by (deadline, arrival)
        self._aside: dict[Hashable, list[_Entry]] = {}  # heaps, as the queue

    @property
    def any_aside(self) -> bool:
        """Whether any sequence has been put aside."""
        return bool(self._aside)

    def push(self, sequence: LiveSequence) -> None:
        """Let it wait for its turn."""
        heapq.heappush(self._queue, (*sequence.urgency, sequence))

    def head(self) -> LiveSequence | None:
        """The first in line."""
        return _first(self._queue)

    def pick(
        self, fits: Callable[[LiveSequence], bool], blocked_by: Callable[[LiveSequence], Hashable | None]
    ) -> LiveSequence | None:
        """Take out the first sequence that fits. Those that something blocks are put aside under its name, until
        `bring_back`."""
        passed: list[_Entry] = []
        picked = None
        while self._queue and len(passed) <= self._lookahead:
            entry = heapq.heappop(self._queue)
            sequence = entry[2]
            if not sequence.alive:
                continue
            if (blocker := blocked_by(sequence)) is not None:
                heapq.heappush(self._aside.setdefault(blocker, []), entry)
                continue
            if fits(sequence):
                picked = sequence
                break
            passed.append(entry)
            if sequence.overtaken >= self._max_overtaken:
                break
        for entry in passed:
            entry[2].overtaken += picked is not None
            heapq.heappush(self._queue, entry)
        return picked

    def first_aside(self, blocker: Hashable) -> LiveSequence | None:
        """The first of those put aside under a name."""
        first = _first(self._aside.get(blocker, []))
        if first is None:
            self._aside.pop(blocker, None)
        return first

    def bring_back(self, blocker: Hashable) -> None:
        """What was put aside under a name takes its place in the line again."""
        for entry in self._aside.pop(blocker, ()):
            if entry[2].alive:
                heapq.heappush(self._queue, entry)

    def watch(self, sequence: LiveSequence, deadline: float) -> None:
        """Report the sequence once its deadline is reached, if it is still alive."""
        heapq.heappush(self._deadlines, (deadline, sequence.arrival, sequence))

    def expired(self, now: float) -> Iterable[LiveSequence]:
        """The live sequences whose deadline is `now` or earlier; each is reported once."""
        while self._deadlines and self._deadlines[0][0] <= now:
            sequence = heapq.heappop(self._deadlines)[2]
            if sequence.alive:
                yield sequence

    def tidy(self, alive: int) -> None:
        """Drop the ended ones where they outnumber the `alive` ones by far."""
        for heap in (self._queue, self._deadlines, *self._aside.values()):
            if len(heap) > 2 * alive + 64:
                heap[:] = [entry for entry in heap if entry[2].alive]
                heapq.heapify(heap)


def fewest(
    candidates: Sequence[LiveSequence], suffices: Callable[[Sequence[LiveSequence]], bool]
) -> list[LiveSequence]:
    """Who must leave so that what leaves `suffices`: the first of the `candidates`, no more than it takes and none that
    changes nothing; nobody if all of them do not suffice. A larger part suffices where a smaller one does."""
    if suffices(()) or not suffices(candidates):
        return []
    count = bisect.bisect_left(range(len(candidates)), True, key=lambda most: suffices(candidates[:most]))
    chosen = list(candidates[:count])
    for each in reversed(candidates[: count - 1]):  # without the last one it does not suffice
        others = [other for other in chosen if other is not each]
        if suffices(others):
            chosen = others
    return chosen


def _first(heap: list[_Entry]) -> LiveSequence | None:
    while heap and not heap[0][2].alive:
        heapq.heappop(heap)
    return heap[0][2] if heap else None
