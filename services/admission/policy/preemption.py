"""Whom to interrupt so that a more urgent request finds room: shedding order for work that runs.

Only requests of a strictly lower class are interrupted, and only as many as must be, all on one worker:

- **Classes**: from the last (batch) upwards; a class is touched only where those below it do not free enough.
- **Within**: either the latest started first, which loses the least work, or the largest first, which interrupts the
  fewest; then whatever proves unnecessary is taken back, the most urgent and the longest running first. What remains is
  minimal: without any one of them the room would not do.
- **Between workers**: the one whose most urgent victim is least urgent, then the fewest sequences, then the least work.

A request that was asked to go counts as going until it is released, or `grace` seconds have passed; it is not asked
twice, and others are not asked for room that is on its way. Nor is the room given to less urgent requests meanwhile
(`kept_from`). What was granted less than `settle` seconds ago may not have reached its worker and is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.admission.policy.account import Reservation, Worker
from services.admission.policy.model import QueueClass, Request


@dataclass(frozen=True, slots=True)
class Plan:
    """Room that is being made for a request."""

    request: Request
    worker: str
    blocks: int
    until: float


@dataclass(frozen=True, slots=True)
class Room:
    """Blocks and sequences that are there, lack or are needed."""

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
        self._asked: dict[str, float] = {}  # request → until when it counts as going
        self._plans: dict[str, Plan] = {}  # by the request that is to get the room

    def victims(
        self, request: Request, workers: Iterable[tuple[Worker, int]], now: float
    ) -> tuple[Worker, list[Reservation]] | None:
        """Whom to interrupt on which of the `workers` (each with the blocks that the request needs there); None when
        nobody may be, or when there is room, or room on its way."""
        self._tidy(now)
        best: tuple[tuple[int, int, float, str], Worker, int, list[Reservation]] | None = None
        for worker, need in workers:
            room = self.available(worker, now, besides=request.request_id)
            lack = Room(need - room.blocks, request.choices - room.sequences)
            if not lack.any:
                return None
            chosen = self._choose(request.queue_class, worker.holds.values(), lack, now)
            if chosen and (best is None or (*_cost(chosen, now), worker.spec.worker) < best[0]):
                best = (*_cost(chosen, now), worker.spec.worker), worker, need, chosen
        if best is None:
            return None
        _, worker, need, chosen = best
        until = now + self._grace
        self._asked.update((each.request.request_id, until) for each in chosen)
        self._plans[request.request_id] = Plan(request, worker.spec.worker, need, until)
        return worker, chosen

    def available(self, worker: Worker, now: float, *, besides: str = "") -> Room:
        """What there is and what is on its way, without what is meant for others than the request `besides`."""
        blocks, sequences = worker.unheld_blocks(now), worker.unheld_sequences(now)
        for request_id in self._asked.keys() & worker.holds.keys():
            held = worker.holds[request_id]
            blocks += held.blocks
            sequences += held.request.choices
        for plan in self._plans.values():
            if plan.worker == worker.spec.worker and plan.request.request_id != besides:
                blocks -= plan.blocks
                sequences -= plan.request.choices
        return Room(blocks, sequences)

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
        """Forgets what took too long; dictionaries keep their order, so the oldest comes first."""
        for request_id in [each for each, until in self._asked.items() if until <= now]:
            del self._asked[request_id]
        for request_id in [each for each, plan in self._plans.items() if plan.until <= now]:
            del self._plans[request_id]

    def _choose(
        self, queue_class: QueueClass, holds: Iterable[Reservation], lack: Room, now: float
    ) -> list[Reservation]:
        """The victims on one worker; empty when there are not enough."""
        before = now - self._settle
        lower = [
            held
            for held in holds
            if held.request.queue_class > queue_class
            and held.granted_at <= before
            and held.request.request_id not in self._asked
        ]
        sets = [_enough(sorted(lower, key=order), lack) for order in (_latest, _largest)]
        return min((each for each in sets if each), key=lambda chosen: _cost(chosen, now), default=[])


def _enough(candidates: Sequence[Reservation], lack: Room) -> list[Reservation]:
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
