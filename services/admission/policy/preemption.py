"""Whom to interrupt so that a more urgent request finds room: shedding order for work that runs.

Only requests of a strictly lower class are interrupted, and only as many as must be, all on one worker:

- **Classes**: from the last (shadow, batch) upwards; a class is touched only where those below it do not free enough.
- **Within**: either the latest started first, which loses the least work, or the largest first, which interrupts the
  fewest; then whatever proves unnecessary is taken back, the most urgent and the longest running first. What remains is
  minimal: without any one of them the room would not do.
- **Between workers**: the one whose most urgent victim is least urgent, then the fewest sequences, then the least work;
  compared on the few workers that lack the fewest blocks.

A request that was asked to go counts as going until it is released, or `grace` seconds have passed; it is not asked
twice, and others are not asked for room that is on its way. Nor is the room given to less urgent requests meanwhile
(`kept_from`). What was granted less than `settle` seconds ago may not have reached its worker and is left alone. So is
what was resumed less than `grace` seconds ago: however often more urgent work comes and goes, what a request had is
computed again at most once in that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.admission.policy.model import QueueClass, Request
from services.admission.policy.worker import Reservation, Worker

_EXAMINED = 8
"""Workers whose victims are compared: of hundreds that would all do, the best few are near enough to the best."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Room that is being made for a request."""

    request: Request
    worker: str
    blocks: int
    until: float


@dataclass(frozen=True, slots=True)
class Lack:
    """Blocks and sequences that are missing."""

    blocks: int
    sequences: int

    @property
    def any(self) -> bool:
        """Is there any of either?"""
        return self.blocks > 0 or self.sequences > 0


class Preemption:
    """What is under way in one pool."""

    def __init__(self, *, grace: float, settle: float) -> None:
        """Durations in seconds; see the module."""
        self._grace = grace
        self._settle = settle
        self._asked: dict[str, tuple[float, Reservation]] = {}  # by request, until when it counts as going
        self._plans: dict[str, Plan] = {}  # by the request that is to get the room

    def victims(
        self, request: Request, workers: Iterable[tuple[Worker, int]], now: float
    ) -> tuple[Worker, list[Reservation]] | None:
        """Whom to interrupt on which of the `workers` (each with the blocks that the request needs there); None when
        nobody may be, or when there is room, or room on its way."""
        self._tidy(now)
        coming = self._coming(besides=request.request_id)
        hopeful: list[tuple[int, int, str, Worker, int, Lack]] = []
        for worker, need in workers:
            blocks, sequences = coming.get(worker.spec.worker, (0, 0))
            lack = Lack(
                need - worker.unheld_blocks(now) - blocks,
                request.choices - worker.unheld_sequences(now) - sequences,
            )
            if not lack.any:
                return None
            touched = _least_urgent_enough(worker, request.queue_class, lack)
            if touched is not None:
                hopeful.append((-touched, lack.blocks, worker.spec.worker, worker, need, lack))
        hopeful.sort()
        best: tuple[tuple[int, int, float, str], Worker, int, list[Reservation]] | None = None
        seen = 0
        for rank, _, name, worker, need, lack in hopeful:
            if seen >= _EXAMINED or (best is not None and rank > best[0][0]):
                break
            chosen = self._choose(request.queue_class, worker, lack, now)
            if not chosen:
                continue
            seen += 1
            cost = (*_cost(chosen, now), name)
            if best is None or cost < best[0]:
                best = cost, worker, need, chosen
        if best is None:
            return None
        _, worker, need, chosen = best
        until = now + self._grace
        self._asked.update((each.request.request_id, (until, each)) for each in chosen)
        self._plans[request.request_id] = Plan(request, worker.spec.worker, need, until)
        return worker, chosen

    def of_class(self, queue_class: QueueClass, worker: Worker, now: float) -> tuple[str, ...]:
        """All of a class that may be asked to go from this worker now; they count as asked from then on."""
        self._tidy(now)
        going = [
            held
            for held in worker.holds.values()
            if held.request.queue_class is queue_class
            and held.request.request_id not in self._asked
            and now - held.granted_at >= self._settle
        ]
        until = now + self._grace
        self._asked.update((each.request.request_id, (until, each)) for each in going)
        return tuple(each.request.request_id for each in going)

    def _coming(self, *, besides: str) -> dict[str, tuple[int, int]]:
        """By worker, the blocks and sequences on their way, without what is meant for others than `besides`."""
        coming: dict[str, tuple[int, int]] = {}
        for _, held in self._asked.values():
            blocks, sequences = coming.get(held.worker, (0, 0))
            coming[held.worker] = blocks + held.blocks, sequences + held.request.choices
        for plan in self._plans.values():
            if plan.request.request_id != besides:
                blocks, sequences = coming.get(plan.worker, (0, 0))
                coming[plan.worker] = blocks - plan.blocks, sequences - plan.request.choices
        return coming

    def kept_from(self, queue_class: QueueClass, now: float) -> set[str]:
        """Workers where room is being made for somebody more urgent than this class."""
        self._tidy(now)
        return {plan.worker for plan in self._plans.values() if plan.request.queue_class < queue_class}

    def over(self, request_id: str) -> None:
        """The request was granted, released or lost: it neither goes nor waits for room any more."""
        self._asked.pop(request_id, None)
        self._plans.pop(request_id, None)

    def asked(self, request_id: str) -> bool:
        """Was it asked to go, as far as is remembered?"""
        return request_id in self._asked

    @property
    def active(self) -> bool:
        """Is room being made for anybody?"""
        return bool(self._plans)

    def _tidy(self, now: float) -> None:
        """Forgets what took too long."""
        for request_id in [each for each, (until, _) in self._asked.items() if until <= now]:
            del self._asked[request_id]
        for request_id in [each for each, plan in self._plans.items() if plan.until <= now]:
            del self._plans[request_id]

    def _choose(self, queue_class: QueueClass, worker: Worker, lack: Lack, now: float) -> list[Reservation]:
        """The victims on one worker; empty when there are not enough."""
        lower = [
            held
            for held in worker.holds.values()
            if held.request.queue_class > queue_class
            and held.request.request_id not in self._asked
            and now - held.granted_at >= (self._grace if held.request.resumed_tokens else self._settle)
        ]
        sets = [_enough(sorted(lower, key=order), lack) for order in (_latest, _largest)]
        return min((each for each in sets if each), key=lambda chosen: _cost(chosen, now), default=[])


def _least_urgent_enough(worker: Worker, than: QueueClass, lack: Lack) -> QueueClass | None:
    """The class down to whose work all would have to go for the lack to be made good; None when even all that is less
    urgent `than` this is too little. A quick look at sums, before anybody is chosen."""
    blocks = sequences = 0
    for queue_class in reversed(QueueClass):
        if queue_class <= than:
            return None
        held = worker.held_by_class.get(queue_class)
        if held is not None:
            blocks, sequences = blocks + held[0], sequences + held[1]
            if blocks >= lack.blocks and sequences >= lack.sequences:
                return queue_class
    return None


def _enough(candidates: Sequence[Reservation], lack: Lack) -> list[Reservation]:
    """From the front as many as free what lacks, then without those that are not needed; empty if all are too few."""
    chosen: list[Reservation] = []
    blocks, sequences = lack.blocks, lack.sequences
    for held in candidates:
        if blocks <= 0 and sequences <= 0:
            break
        # One that frees nothing of what still lacks is of no use.
        if not (blocks > 0 and held.blocks > 0) and sequences <= 0:
            continue
        chosen.append(held)
        blocks -= held.blocks
        sequences -= held.request.choices
    if blocks > 0 or sequences > 0:
        return []
    for held in sorted(chosen, key=lambda each: (each.request.queue_class, each.granted_at)):
        if blocks + held.blocks <= 0 and sequences + held.request.choices <= 0:
            chosen.remove(held)
            blocks += held.blocks
            sequences += held.request.choices
    return chosen


def _latest(held: Reservation) -> tuple[int, float, str]:
    return -held.request.queue_class, -held.granted_at, held.request.request_id


def _largest(held: Reservation) -> tuple[int, int, float, str]:
    return -held.request.queue_class, -held.blocks, -held.granted_at, held.request.request_id


def _cost(chosen: Sequence[Reservation], now: float) -> tuple[int, int, float]:
    """The most urgent class among them (less urgent sorts first), sequences, seconds of work in all."""
    return (
        -min(each.request.queue_class for each in chosen),
        sum(each.request.choices for each in chosen),
        sum((now - each.granted_at) * each.request.choices for each in chosen),
    )
