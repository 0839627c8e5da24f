"""What one pool's workers can still take.

Every granted request holds its whole need (all KV blocks it may come to use, and its sequences) from grant to
release; the sum never exceeds what the worker has. That alone cannot see work that somebody else gave the worker or
whose end was never told (admission restarted, a gateway died). Reports tell of that: what a worker uses beyond what
is held here is *foreign* and is taken off as well (`Foreign`). What foreign work may still come to need is unknown;
the engine copes with it by letting sequences wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from services.admission.policy.model import Interrupt, Limits, Report, Request, WorkerSpec
from services.admission.policy.placement import eligible, pick, to_keep


class Foreign:
    """How much of one resource work uses that is not held here.

    A report's surplus (used beyond held) is a lower bound and counts until the next report: held work grows into its
    reservation and hides it, and a release that overtakes a report feigns it. What is *known* to be foreign (found
    when a worker joined, or disowned) counts on until its time is over, but never more than all that is used.
    """

    __slots__ = ("_known", "_surplus", "_until")

    def __init__(self) -> None:
        self._known = 0
        self._until = 0.0
        self._surplus = 0

    def amount(self, now: float) -> int:
        """The estimate."""
        return max(self._surplus, self._known if now < self._until else 0)

    def add_known(self, amount: int, now: float, ttl: float) -> None:
        """Foreign for certain, for `ttl` seconds at most."""
        self._known = (self._known if now < self._until else 0) + amount
        self._until = now + ttl

    def reported(self, used: int, held: int) -> None:
        """A report came."""
        self._surplus = max(0, used - held)
        self._known = min(self._known, used)


@dataclass(slots=True)
class Reservation:
    """What a granted request holds on its worker."""

    request: Request
    worker: str
    blocks: int
    granted_at: float
    cost: float
    until: float  # when it stops counting in full, if nobody releases it


class Worker:
    """One worker's account."""

    __slots__ = (
        "_foreign_blocks",
        "_foreign_sequences",
        "_limits",
        "_recent_prefill",
        "_recent_sum",
        "draining",
        "held_blocks",
        "held_sequences",
        "last_heard",
        "live",
        "report",
        "spec",
    )

    def __init__(self, spec: WorkerSpec, limits: Limits, now: float) -> None:
        self.spec = spec
        self._limits = limits
        self.live = True
        self.draining = False  # it was asked to; what it says of itself is in its report
        self.last_heard = now
        self.report: Report | None = None  # none yet in this session: no work until it tells its load
        self.held_blocks = 0
        self.held_sequences = 0
        self._foreign_blocks = Foreign()
        self._foreign_sequences = Foreign()
        self._recent_prefill: deque[tuple[float, int]] = deque()  # (granted at, prompt tokens) not yet in a report
        self._recent_sum = 0

    def heard(self, report: Report, now: float) -> None:
        """Takes in a report; a worker's first one in a session tells what it runs from before."""
        used = max(0, self.spec.total_blocks - report.free_blocks)
        sequences = report.running + report.waiting
        if self.report is None:
            ttl = self._limits.foreign_ttl
            self._foreign_blocks.add_known(max(0, used - self.held_blocks), now, ttl)
            self._foreign_sequences.add_known(max(0, sequences - self.held_sequences), now, ttl)
        self._foreign_blocks.reported(used, self.held_blocks)
        self._foreign_sequences.reported(sequences, self.held_sequences)
        self.report = report
        self.last_heard = now
        self._settle_prefill(now)

    def joined(self, spec: WorkerSpec, now: float) -> None:
        """A new session of the worker: what it said before counts no more, what is held stays held."""
        self.spec = spec
        self.live = True
        self.draining = False
        self.last_heard = now
        self.report = None

    @property
    def idle(self) -> bool:
        """Nothing is held on it."""
        return self.held_sequences == 0

    def open(self) -> bool:
        """May it get new work at all?"""
        return self.live and not self.draining and self.report is not None and not self.report.draining

    def free_blocks(self, now: float) -> int:
        """Blocks that no granted and no foreign work may come to need."""
        return self.spec.total_blocks - self.held_blocks - self._foreign_blocks.amount(now)

    def free_sequences(self, now: float) -> int:
        """Sequences it may start now."""
        most = self.spec.max_running + self._limits.run_ahead
        return most - self.held_sequences - self._foreign_sequences.amount(now)

    def queued_prefill(self) -> int:
        """Prompt tokens that wait there for prefill: as reported, and as granted since."""
        return (self.report.queued_prefill_tokens if self.report else 0) + self._recent_sum

    def load(self, now: float) -> float:
        """0 when idle, growing with held blocks, sequences and waiting prefill; for comparison between workers."""
        spec = self.spec
        blocks = 1.0 - self.free_blocks(now) / spec.total_blocks if spec.total_blocks else 1.0
        sequences = 1.0 - self.free_sequences(now) / (spec.max_running + self._limits.run_ahead or 1)
        return max(blocks, sequences) + self.queued_prefill() / self._limits.max_queued_prefill

    def could_ever_fit(self, request: Request) -> bool:
        """Would the request fit it if it were empty?"""
        spec = self.spec
        return (
            request.prompt_tokens + request.max_output_tokens <= spec.max_context
            and request.blocks(spec.block_size) <= spec.total_blocks
            and request.choices <= spec.max_running + self._limits.run_ahead
        )

    def need(self, request: Request) -> int:
        """Blocks kept for the request: for its longest output, or the share of it that a preemptive worker needs."""
        share = self._limits.output_reserve if self.spec.preemptive else 1.0
        return request.blocks(self.spec.block_size, share)

    def fits(self, request: Request, now: float) -> bool:
        """May the request run there now?"""
        if not self.open() or not self.could_ever_fit(request):
            return False
        if request.choices > self.free_sequences(now) or self.need(request) > self.free_blocks(now):
            return False
        self._settle_prefill(now)
        waiting = self.queued_prefill()
        return waiting == 0 or waiting + request.prompt_tokens <= self._limits.max_queued_prefill

    def hold(self, request: Request, now: float) -> int:
        """Reserves the request's need; returns its blocks."""
        blocks = self.need(request)
        self.held_blocks += blocks
        self.held_sequences += request.choices
        self._recent_prefill.append((now, request.prompt_tokens))
        self._recent_sum += request.prompt_tokens
        return blocks

    def release(self, blocks: int, sequences: int) -> None:
        """Gives a reservation back."""
        self.held_blocks -= blocks
        self.held_sequences -= sequences

    def disown(self, blocks: int, sequences: int, now: float) -> None:
        """Gives a reservation back whose work may still run: it counts as foreign until reports show otherwise."""
        self.release(blocks, sequences)
        self._foreign_blocks.add_known(blocks, now, self._limits.foreign_ttl)
        self._foreign_sequences.add_known(sequences, now, self._limits.foreign_ttl)

    def _settle_prefill(self, now: float) -> None:
        recent = self._recent_prefill
        while recent and recent[0][0] <= now - self._limits.prefill_settle:
            self._recent_sum -= recent.popleft()[1]


class Ledger:
    """All workers of a pool and all that is held on them."""

    def __init__(self, limits: Limits, *, expected_output: Callable[[Request], int | None] | None = None) -> None:
        """`expected_output` tells how many tokens per choice a request may be expected to generate (a high quantile);
        None when too little is known."""
        self._limits = limits
        self._expected_output = expected_output
        self.workers: dict[str, Worker] = {}
        self.reservations: dict[str, Reservation] = {}

    def join(self, spec: WorkerSpec, now: float) -> None:
        """A worker came, or came again with a new session."""
        worker = self.workers.get(spec.worker)
        if worker is None:
            self.workers[spec.worker] = Worker(spec, self._limits, now)
        else:
            worker.joined(spec, now)

    def leave(self, worker_id: str) -> bool:
        """A worker is lost: no new work from this moment. False when it was not there."""
        worker = self.workers.get(worker_id)
        if worker is None or not worker.live:
            return False
        worker.live = False
        self._forget_if_gone(worker)
        return True

    def serving(self, model_version: str) -> list[Worker]:
        """Live workers of the version, busy and draining ones included."""
        return [w for w in self.workers.values() if w.live and model_version in w.spec.model_versions]

    def any_room(self, now: float) -> bool:
        """Could any worker take anything? A cheap answer to most questions under overload."""
        return any(w.open() and w.free_sequences(now) > 0 and w.free_blocks(now) > 0 for w in self.workers.values())

    def eligible(self, request: Request) -> list[Worker]:
        """Live workers of its version that the request may use, whether or not they have room now."""
        return eligible(request, self.serving(request.model_version))

    def pick(self, request: Request, now: float, *, kept: Collection[str] = ()) -> Worker | None:
        """The best worker that the request fits now; None when there is none. `kept` wait for somebody else."""
        return pick(request, self.eligible(request), now, kept=kept)

    def to_keep(self, request: Request, now: float, *, kept: Collection[str] = ()) -> Worker | None:
        """The worker to keep free for a request that fits none now: the one nearest to having room."""
        return to_keep(request, self.eligible(request), now, kept=kept)

    def over_share(self, request: Request) -> bool:
        """Is it the tenant's own KV budget (`Request.kv_share`) that keeps the request out now, whatever room there is?"""
        return False

    def victims(self, request: Request, now: float) -> Interrupt | None:
        """Whom to interrupt so that the request fits; None when nobody less urgent holds enough, or when what was
        interrupted already will do."""
        return None

    def reserve(self, request: Request, worker_id: str, now: float) -> Reservation:
        """Holds the request's whole need on the worker.

        :raises ValueError: it does not fit, or the request holds a share already; nothing is changed.
        """
        worker = self.workers[worker_id]
        if request.request_id in self.reservations:
            raise ValueError(f"{request.request_id} holds a share already")
        if not worker.fits(request, now):
            raise ValueError(f"{request.request_id} does not fit {worker_id}")
        reservation = Reservation(
            request=request,
            worker=worker_id,
            blocks=worker.hold(request, now),
            granted_at=now,
            cost=self._limits.cost_of(request),
            until=request.deadline + self._limits.release_grace,
        )
        self.reservations[request.request_id] = reservation
        return reservation

    def release(self, request_id: str) -> Reservation | None:
        """Gives the request's share back; None when it holds none."""
        reservation = self.reservations.pop(request_id, None)
        if reservation is not None:
            worker = self.workers[reservation.worker]
            worker.release(reservation.blocks, reservation.request.choices)
            self._forget_if_gone(worker)
        return reservation

    def ended(
        self, request_id: str, now: float, *, output_tokens: int, failed: bool, cached_prompt_tokens: int
    ) -> None:
        """What became of a request that holds a share; told just before its release."""

    def disown(self, request_ids: Iterable[str], now: float) -> int:
        """Gives back the shares of requests that nobody will release; their work counts as foreign. How many."""
        count = 0
        for request_id in request_ids:
            reservation = self.reservations.pop(request_id, None)
            if reservation is not None:
                worker = self.workers[reservation.worker]
                worker.disown(reservation.blocks, reservation.request.choices, now)
                self._forget_if_gone(worker)
                count += 1
        return count

    def overdue(self, now: float) -> list[str]:
        """Requests that should have been released by now."""
        return [request_id for request_id, held in self.reservations.items() if held.until <= now]

    def owned_by(self, owner: str) -> list[str]:
        """Requests that this gateway instance holds."""
        return [request_id for request_id, held in self.reservations.items() if held.request.owner == owner]

    def _forget_if_gone(self, worker: Worker) -> None:
        if not worker.live and worker.idle:
            self.workers.pop(worker.spec.worker, None)
