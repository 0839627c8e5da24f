"""What one pool's workers can still take, and who holds what: workers, placement, preemption and standing together.

A single worker is in worker.py, how one is chosen in placement.py, who makes room for whom in
preemption.py, who is not trusted for a while in outliers.py. This module ties them to the reservations.

**Grants by blocks.** A request is granted when its blocks fit: on a worker that does not preempt those of its longest
output, on one that does those that it is expected to need (`worker.blocks_needed`).

**Growth.** Workers tell of requests that have come far (`Report.progress`). One that turns out longer than was expected
is counted from then on by what those that came so far may still come to, and at least by twice what it has, after which
it is told of again: what a tenant taught its expectation by short answers is unlearned by the first long ones.

**A tenant's budget** (`Request.kv_share`): its held blocks stay within that share of the live workers' blocks. A tenant
that holds nothing may have one request whatever its size, so that no budget starves. A model version's
(`Request.version_share`) is kept likewise, beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from services.admission.policy.affinity import Affinity
from services.admission.policy.budgets import Budgets
from services.admission.policy.candidates import FEW, Candidates
from services.admission.policy.limits import Limits
from services.admission.policy.model import Interrupt, QueueClass, Report, Request, WorkerSpec
from services.admission.policy.outliers import Outliers
from services.admission.policy.placement import Needs, eligible, pick, to_keep
from services.admission.policy.preemption import Preemption
from services.admission.policy.worker import Reservation, Worker, blocks_needed

_Kind = tuple[int, bool]
_NEVER = 1 << 62  # blocks: more than any worker has


class Fleet:
    """All workers of a pool and all that is held on them."""

    def __init__(
        self,
        limits: Limits,
        *,
        expected_output: Callable[[Request, int], int | None] | None = None,
        slowness: Callable[[str, float], float] = lambda worker, now: 0.0,
    ) -> None:
        """`expected_output` tells what a request that has so many tokens per choice may be expected to come to (a high
        quantile); None when too little is known. `slowness`: seconds that a worker's first tokens come late."""
        self._limits = limits
        self._expected_output = expected_output
        self._slowness = slowness
        self.workers: dict[str, Worker] = {}
        self.reservations: dict[str, Reservation] = {}
        self.affinity = Affinity(limits.placement.prefix_memory)
        self.outliers = Outliers(limits.ejection)
        self.preemption = Preemption(grace=limits.preempt_grace, settle=limits.prefill_settle)
        self.budgets = Budgets()
        self._live_blocks = 0
        self._serving: dict[str, list[Worker]] = {}  # by version; anew when a worker comes or goes
        self._eligible: dict[tuple[str, tuple[str, ...]], list[Worker]] = {}  # by version and zones, likewise
        self._kinds: frozenset[_Kind] = frozenset()
        self._candidates = Candidates(limits, self.serving, self.affinity)

    # ---- workers -------------------------------------------------------------------------------------------------

    def join(self, spec: WorkerSpec, now: float) -> None:
        """A worker came, or came again with a new session."""
        worker = self.workers.get(spec.worker)
        if worker is None:
            self.workers[spec.worker] = Worker(spec, self._limits, self.outliers, now, self._slowness)
        else:
            worker.joined(spec, now)
        self._membership_changed()

    def leave(self, worker_id: str) -> bool:
        """A worker is lost: no new work from this moment. False when it was not there."""
        worker = self.workers.get(worker_id)
        if worker is None or not worker.live:
            return False
        worker.live = False
        worker.changed()
        self.affinity.forget(worker_id)
        self.outliers.forget(worker_id)
        self._forget_if_gone(worker)
        self._membership_changed()
        self._call_back(worker.spec.model_versions)
        return True

    def drain(self, worker_id: str) -> None:
        """A worker is asked to finish: it gets no new work until it joins anew."""
        worker = self.workers.get(worker_id)
        if worker is not None:
            worker.draining = True
            self._call_back(worker.spec.model_versions)

    def serves(self, worker_id: str, model_versions: frozenset[str]) -> frozenset[str]:
        """A live worker has these versions ready from now on; returns those that now nobody serves any more."""
        worker = self.workers.get(worker_id)
        if worker is None or not worker.live or worker.spec.model_versions == model_versions:
            return frozenset()
        dropped = worker.spec.model_versions - model_versions
        worker.spec = replace(worker.spec, model_versions=model_versions)
        worker.changed()
        self._membership_changed()
        self._call_back(dropped)
        return frozenset(version for version in dropped if not self.serving(version))

    def heard(self, worker_id: str, report: Report, now: float) -> bool:
        """A worker told its load. False when it is not there."""
        worker = self.workers.get(worker_id)
        if worker is None or not worker.live:
            return False
        was_open = worker.open()
        for request_id, tokens in report.progress:
            self._came_far(request_id, tokens, worker)
        worker.heard(report, now)
        if was_open and report.draining:
            self._call_back(worker.spec.model_versions)
        return True

    def stranded(self, request: Request) -> bool:
        """Are there workers of its version, but none that the request could ever run on?"""
        if not self.serving(request.model_version):
            return False
        return not any(worker.could_ever_fit(request) for worker in self.eligible(request))

    def deserted(self, request: Request, now: float) -> bool:
        """Is there nobody who could take it, however empty they were: no worker of its version that it may use and is
        large enough, or only such as leave, have told nothing yet or have fallen silent?"""
        return not any(
            worker.open() and worker.trusted(now) > 0.0 and worker.could_ever_fit(request)
            for worker in self.eligible(request)
        )

    @property
    def staffed(self) -> bool:
        """Is there any worker?"""
        return self._live_blocks > 0

    def serving(self, model_version: str) -> list[Worker]:
        """Live workers of the version, busy and draining ones included."""
        found = self._serving.get(model_version)
        if found is None:
            found = [w for w in self.workers.values() if w.live and model_version in w.spec.model_versions]
            self._serving[model_version] = found
        return found

    def has_room(self, model_version: str, zones: tuple[str, ...], now: float) -> bool:
        """Could any worker of the version in these zones (none: in all) take anything? Costs next to nothing."""
        return self._candidates.has_room(model_version, zones, now)

    # ---- placement -----------------------------------------------------------------------------------------------

    def eligible(self, request: Request) -> list[Worker]:
        """Live workers of its version that the request may use, whether or not they have room now; do not change it."""
        if request.excluded:
            return eligible(request, self.serving(request.model_version))
        key = request.model_version, request.zones
        found = self._eligible.get(key)
        if found is None:
            found = self._eligible[key] = eligible(request, self.serving(request.model_version))
        return found

    def pick(self, request: Request, now: float, *, kept: Collection[str] = ()) -> Worker | None:
        """The best worker that the request fits now; None when there is none. `kept` wait for somebody else."""
        needs = self._needs(request)
        if request.kv_share or request.version_share:
            budget = self._budget(request)
            if all(need > budget for need, _ in needs.values()):
                return None
            needs = {kind: (need if need <= budget else _NEVER, most) for kind, (need, most) in needs.items()}
        if self.preemption.active:
            kept = self.preemption.kept_from(request.queue_class, now).union(kept)
        depths = self.affinity.depths(request)

        def best(workers: list[Worker], cached: dict[str, float]) -> Worker | None:
            return pick(request, workers, now, needs=needs, limits=self._limits, cached=cached, kept=kept)

        every = self.eligible(request)
        if len(every) <= FEW or request.excluded:
            return best(every, self.affinity.matches(request, depths))
        blocks = min((need for need, _ in needs.values()), default=0)
        return self._candidates.best(request, blocks, depths, best, now)

    def to_keep(self, request: Request, now: float, *, kept: Collection[str] = ()) -> Worker | None:
        """The worker to keep free for a request that fits none now: the one nearest to having room."""
        if self.over_share(request):
            return None  # room would not help it
        outliers = self.outliers
        return to_keep(
            request,
            self.eligible(request),
            now,
            kept=kept,
            allowed=lambda worker: not outliers.ejected(worker.spec.worker, now),
        )

    def fits(self, request: Request, worker: Worker, now: float) -> bool:
        """May the request run there now, the tenant's and the version's budget included?"""
        need = self.need(request, worker)
        return need <= self._budget(request) and worker.fits(request, now, blocks=need)

    def need(self, request: Request, worker: Worker) -> int:
        """Blocks that a grant there takes."""
        return worker.need(request, self._expected(request))

    def over_share(self, request: Request) -> bool:
        """Is it a budget, the tenant's (`Request.kv_share`) or the version's (`version_share`), that keeps the request
        out, whatever room there is?"""
        if not (request.kv_share or request.version_share):
            return False
        return self._exceeds(request, self._budget(request))

    def over_version_share(self, request: Request) -> bool:
        """Is it the version's?"""
        if not request.version_share:
            return False
        return self._exceeds(request, self.budgets.left_to_version(request, self._live_blocks))

    # ---- preemption ----------------------------------------------------------------------------------------------

    def victims(self, request: Request, now: float) -> Interrupt | None:
        """Whom to interrupt so that the request fits; None when nobody less urgent holds enough, or when what was
        interrupted already will do."""
        if self.over_share(request):
            return None
        needs = self._needs(request)
        # Only where what is known is fresh: silence is no reason to interrupt anybody.
        workers = [
            (worker, needs[worker.kind][0])
            for worker in self.eligible(request)
            if worker.open()
            and worker.trusted(now) == 1.0
            and not self.outliers.ejected(worker.spec.worker, now)
            and worker.could_ever_fit(request)
        ]
        found = self.preemption.victims(request, workers, now)
        if found is None:
            return None
        worker, chosen = found
        return Interrupt(worker.spec.worker, tuple(held.request.request_id for held in chosen))

    # ---- reservations --------------------------------------------------------------------------------------------

    def reserve(self, request: Request, worker_id: str, now: float) -> Reservation:
        """Holds the request's whole need on the worker.

        :raises ValueError: it does not fit, or the request holds a share already; nothing is changed.
        """
        worker = self.workers[worker_id]
        if request.request_id in self.reservations:
            raise ValueError(f"{request.request_id} holds a share already")
        need = self.need(request, worker)
        if need > self._budget(request) or not worker.fits(request, now, blocks=need):
            raise ValueError(f"{request.request_id} does not fit {worker_id}")
        return self._hold(request, worker, need, now)

    def exchange(self, credit_id: str, request: Request, now: float) -> Reservation | None:
        """The request runs on this credit, which is at least as large: it holds what it needs in the credit's place.
        None when there is no such credit (any more); nothing is changed."""
        credit = self.reservations.get(credit_id)
        if credit is None or not credit.request.credit or request.request_id in self.reservations:
            return None
        worker = self.workers[credit.worker]
        self._take(credit_id)
        worker.release(credit)
        return self._hold(request, worker, min(self.need(request, worker), credit.blocks), now)

    def release(self, request_id: str) -> Reservation | None:
        """Gives the request's share back; None when it holds none."""
        reservation = self._take(request_id)
        if reservation is not None:
            worker = self.workers[reservation.worker]
            worker.release(reservation)
            self._forget_if_gone(worker)
        return reservation

    def ended(
        self, request_id: str, now: float, *, output_tokens: int, failed: bool, cached_prompt_tokens: int
    ) -> None:
        """What became of a request that holds a share; told just before its release. `failed` means: through the
        worker's fault. A request that gave no token and did not fail says nothing of its worker."""
        reservation = self.reservations.get(request_id)
        if reservation is None or not (failed or output_tokens):
            return
        if reservation.request.queue_class is QueueClass.SHADOW:
            return  # a version that fails on copies must not take a worker from those whom it serves well
        worker = self.workers[reservation.worker]
        if not worker.live:
            return
        name = worker.spec.worker
        if output_tokens:
            self.affinity.observed(name, reservation.expected_cached, cached_prompt_tokens)
        version = reservation.request.model_version
        alike: list[str] = []
        also: list[list[str]] = []
        if failed:
            alike = self._in_use(version, worker)
            also = [self._in_use(each, worker) for each in worker.spec.model_versions if each != version]
        before = reservation.ejections
        self.outliers.outcome(name, now, failed=failed, workers=alike, also=also, ejections=before)
        worker.changed()

    def disown(self, request_ids: Iterable[str], now: float) -> int:
        """Gives back the shares of requests that nobody will release; their work counts as foreign. How many."""
        count = 0
        for request_id in request_ids:
            reservation = self._take(request_id)
            if reservation is not None:
                worker = self.workers[reservation.worker]
                worker.disown(reservation, now)
                self._forget_if_gone(worker)
                count += 1
        return count

    def overdue(self, now: float) -> list[str]:
        """Requests that should have been released by now."""
        return [request_id for request_id, held in self.reservations.items() if held.until <= now]

    def owned_by(self, owner: str) -> list[str]:
        """Requests that this gateway instance holds."""
        return [request_id for request_id, held in self.reservations.items() if held.request.owner == owner]

    # ---- inside --------------------------------------------------------------------------------------------------

    def _came_far(self, request_id: str, tokens: int, worker: Worker) -> None:
        """A request has so many tokens (per choice) on its worker."""
        held = self.reservations.get(request_id)
        if held is None or held.worker != worker.spec.worker:
            return  # somebody else's
        request = held.request
        more = worker.need(request, max(2 * tokens, self._expected(request, tokens) or 0)) - held.blocks
        if more > 0:
            worker.grow(held, more)
            self.budgets.add(request, more)

    def _in_use(self, model_version: str, *besides: Worker) -> list[str]:
        """Workers of the version that take new work, but for their standing, and those `besides` that serve it."""
        return [each.spec.worker for each in self.serving(model_version) if each in besides or each.open()]

    def _call_back(self, model_versions: Iterable[str]) -> None:
        """A worker takes no new work for these any more: too many of those that remain may be ejected."""
        for version in model_versions:
            for name in self.outliers.left(self._in_use(version)):
                self.workers[name].changed()

    def _needs(self, request: Request) -> Needs:
        expected = self._expected(request)
        return {
            kind: (blocks_needed(request, kind, self._limits, expected), request.blocks(kind[0]))
            for kind in self._kinds
        }

    def _expected(self, request: Request, produced: int = 0) -> int | None:
        """Output tokens per choice to keep room for; of a credit all, as nobody knows whose it will be."""
        if request.credit:
            return request.max_output_tokens
        return self._expected_output(request, produced) if self._expected_output is not None else None

    def _budget(self, request: Request) -> float:
        """Blocks that the tenant may still take of this version."""
        return self.budgets.left(request, self._live_blocks)

    def _hold(self, request: Request, worker: Worker, need: int, now: float) -> Reservation:
        name = worker.spec.worker
        reservation = Reservation(
            request=request,
            worker=name,
            blocks=need,
            granted_at=now,
            cost=self._limits.cost_of(request),
            until=request.deadline + self._limits.release_grace,
            expected_cached=self.affinity.granted(request, worker.spec),
            probe=self.outliers.granted(name, now),
            ejections=self.outliers.ejections(name),
        )
        found = int(reservation.expected_cached * self.affinity.trust(name))
        worker.hold(reservation, now, prefill=0 if request.credit else request.prompt_tokens - found)
        self.reservations[request.request_id] = reservation
        self.budgets.add(request, need)
        self.preemption.over(request.request_id)
        return reservation

    def _exceeds(self, request: Request, budget: float) -> bool:
        return all(need > budget for need, _ in self._needs(request).values())

    def _take(self, request_id: str) -> Reservation | None:
        reservation = self.reservations.pop(request_id, None)
        if reservation is None:
            return None
        self.budgets.add(reservation.request, -reservation.blocks)
        if reservation.probe:
            self.outliers.probed(reservation.worker, reservation.ejections)
        self.preemption.over(request_id)
        return reservation

    def _membership_changed(self) -> None:
        self._serving.clear()
        self._eligible.clear()
        self._candidates.membership_changed()
        live = [worker for worker in self.workers.values() if worker.live]
        self._live_blocks = sum(worker.spec.total_blocks for worker in live)
        self._kinds = frozenset(worker.kind for worker in live)

    def _forget_if_gone(self, worker: Worker) -> None:
        if not worker.live and worker.idle:
            self.workers.pop(worker.spec.worker, None)
