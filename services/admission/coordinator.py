"""Admission's shell between streams and pools: who waits for which answer, who holds which grant. No I/O.

One event loop; every method returns without waiting. Time is read once per call.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable

from weir.admission.v1 import admission_pb2 as pb

from libs.clock import Clock
from libs.deadlines import to_seconds
from libs.errors import Reason, WeirError
from libs.telemetry import get_logger
from services.admission import convert
from services.admission.crediting import Crediting
from services.admission.granting import Granting
from services.admission.metrics import GATEWAYS_ABANDONED, WORKERS_LOST, PoolMetrics
from services.admission.policy.limits import Limits
from services.admission.policy.model import Event, Granted, Interrupt, Outcome, Queued, Refused, Request
from services.admission.policy.pool import Pool
from services.admission.worker_session import WorkerSession

OnTold = Callable[[str, int, str], None]
"""Gets a pool, its newest term by a worker's word, and whose that is."""
log = get_logger(__name__)
_PUBLISH_SECONDS = 1.0

Waiter = asyncio.Future[pb.AdmissionReply]


class Coordinator:
    """All pools of this process."""

    def __init__(
        self,
        *,
        limits: Limits,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        grant_lifetime: float,
        worker_heartbeat: float,
        gateway_grace: float,
        chance: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Durations in seconds; see config.py. `random_bytes` makes grant keys and nonces: `os.urandom`; `chance`
        draws from 0 to 1 for the jitter of retry-after."""
        self._limits = limits
        self._clock = clock
        self._granting = Granting(clock=clock, random_bytes=random_bytes, lifetime=grant_lifetime)
        self._heartbeat = worker_heartbeat
        self._gateway_grace = gateway_grace
        self._chance = chance
        self._pools: dict[str, Pool] = {}
        self._epochs: dict[str, int] = {}
        """This process's term as the owner of each pool; 0: another process owns it, so there is no `Pool`."""
        self._on_told: list[OnTold] = []
        self._metrics: dict[str, PoolMetrics] = {}
        self._workers: dict[str, WorkerSession] = {}
        self._crediting = Crediting(limits, granting=self._granting, sessions=self._workers, random_bytes=random_bytes)
        self._waiters: dict[str, set[Waiter]] = {}
        self._gateways: dict[tuple[str, str], int] = {}  # gateway instance, pool → open streams
        self._gone: dict[tuple[str, str], float] = {}  # likewise → when its shares there are given up
        self._born = clock.monotonic()
        self._next_publish = 0.0
        self._draining = False
        self.asked = asyncio.Event()
        """Set by each request: a pool may not be idle any more."""

    @property
    def pools(self) -> dict[str, Pool]:
        """By name, without those that another process is known to own; to read."""
        return self._pools

    # ---- ownership -----------------------------------------------------------------------------------------------

    def on_told(self, callback: OnTold) -> None:
        """Calls back when a worker reports a newer term than it did before."""
        self._on_told.append(callback)

    def reached(self) -> set[str]:
        """Pools of which workers report here."""
        return {session.pool for session in self._workers.values()}

    def won(self, name: str, epoch: int) -> None:
        """A term of this process begins: it decides for the pool, anew. What others granted, or this process in
        another term, the workers tell with the report by which they confirm the term."""
        self.lost(name)
        self._epochs[name] = epoch
        now = self._clock.monotonic()
        pool = self._pool(name, born=now)
        for session in self._workers.values():
            if session.pool == name:
                pool.worker_joined(session.spec, now)
                session.send(pb.ReportCapacityResponse(owns=pb.Owns(epoch=epoch)))
        log.info("pool_owned", pool=name, epoch=epoch)

    def lost(self, name: str) -> None:
        """Another process owns the pool: those who wait are to ask there."""
        if self._epochs.get(name):
            log.info("pool_given_up", pool=name, epoch=self._epochs[name])
        self._epochs[name] = 0
        pool = self._pools.pop(name, None)
        if pool is not None:
            for event in pool.drain(self._clock.monotonic()):
                if not isinstance(event, Interrupt):
                    self._fail(event.request.request_id, WeirError(Reason.NOT_OWNER, "The pool has another owner."))
            self._metrics.pop(name).clear()

    # ---- gateways ------------------------------------------------------------------------------------------------

    def gateway_opened(self, instance: str, pool: str) -> None:
        """A gateway has a stream on which it asks for this pool (again)."""
        key = instance, pool
        self._gateways[key] = self._gateways.get(key, 0) + 1
        self._gone.pop(key, None)

    def gateway_closed(self, instance: str, pool: str) -> None:
        """A gateway lost such a stream; when it was the last of the pool, its shares there are given up after the
        grace: it is lost, or it asks another process for this pool now."""
        key = instance, pool
        self._gateways[key] -= 1
        if not self._gateways[key]:
            del self._gateways[key]
            self._gone[key] = self._clock.monotonic() + self._gateway_grace

    def pool_of(self, request_id: str) -> str:
        """Where the request waits or holds a share; empty when it is not known."""
        for name, pool in self._pools.items():
            if request_id in pool.fleet.reservations or pool.waiting(request_id) is not None:
                return name
        return ""

    def admit(self, admit: pb.Admit, *, deadline: float, owner: str) -> pb.AdmissionReply | Waiter:
        """The answer, or a future of it when the request has to wait. Cancelling the future gives the wait up.

        :raises WeirError: INVALID_REQUEST naming the field.
        """
        now = self._clock.monotonic()
        request = convert.to_request(admit, deadline=deadline, owner=owner, now=now)
        self.asked.set()
        pool = self._pool(admit.pool)
        if admit.credit:
            reply = self._used(pool, admit.credit, request, now)
            self._crediting.give(pool, request, reply, count=admit.credits, epoch=self.epoch(pool.name), now=now)
            return reply
        answer, events = pool.admit(request, now)
        if events:
            self._apply(pool, events)
        if isinstance(answer, Queued):
            waiter: Waiter = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(request.request_id, set()).add(waiter)
            waiter.add_done_callback(functools.partial(self._gave_up, pool, request.request_id))
            return waiter
        reply = self._reply(pool, answer)
        if isinstance(answer, Granted):
            self._crediting.give(pool, request, reply, count=admit.credits, epoch=self.epoch(pool.name), now=now)
        if request.request_id in self._waiters:  # it asked before, for something else
            self._answer(request.request_id, _copy(reply))
        return reply

    def release(self, release: pb.Release) -> pb.AdmissionReply:
        """The reply to Release; idempotent, `known` is false from the second time on."""
        request_id = release.request_id
        self._granting.forget(request_id)
        now = self._clock.monotonic()
        for pool in self._pools.values():
            waiting = pool.waiting(request_id)
            known, events = pool.release(
                request_id,
                now,
                output_tokens=None if release.unused else release.output_tokens,
                failed=release.failed,
                first_token=to_seconds(release.first_token) if release.HasField("first_token") else None,
                cached_prompt_tokens=release.cached_prompt_tokens,
                cut_short=release.cut_short,
            )
            if known:
                if waiting is not None:
                    self._metrics[pool.name].left(waiting.queue_class, Outcome.CANCELLED)
                    for waiter in self._waiters.pop(request_id, ()):
                        waiter.cancel()
                self._apply(pool, events)
                return _contended(pool, convert.released(True))
        return convert.released(False)

    # ---- workers -------------------------------------------------------------------------------------------------

    def worker_joined(self, hello: pb.WorkerHello) -> WorkerSession:
        """A worker opened its stream; an earlier stream of the same worker is over with this.

        :raises WeirError: INVALID_REQUEST naming the field; DRAINING.
        """
        if self._draining:
            raise WeirError(Reason.DRAINING, "Admission moves to another process; try again.")
        spec = convert.to_spec(hello)
        earlier = self._workers.get(spec.worker)
        if earlier is not None:
            self.worker_left(earlier, "replaced")
        session = self._granting.open(hello, spec)
        self._workers[spec.worker] = session
        if self._epochs.get(hello.pool) != 0:
            self._pool(hello.pool).worker_joined(spec, self._clock.monotonic())
        log.info(
            "worker_joined",
            worker=spec.worker,
            pool=hello.pool,
            zone=spec.zone,
            blocks=spec.total_blocks,
            versions=sorted(spec.model_versions),
        )
        return session

    def worker_reported(self, session: WorkerSession, report: pb.CapacityReport) -> None:
        """A worker told its load; reports of a session that is over are ignored."""
        if self._workers.get(session.spec.worker) is session:
            session.report, session.heard = report, self._clock.monotonic()
            if report.epoch > session.epoch:
                session.epoch = report.epoch
                for callback in self._on_told:
                    callback(session.pool, report.epoch, report.owner)
            pool = self._pools.get(session.pool)
            if pool is None or session.epoch < self.epoch(session.pool):
                return  # what it tells may lack what it was granted in an older term meanwhile
            now, worker = self._clock.monotonic(), session.spec.worker
            # Those of the hello are meant when the report names none.
            ready = frozenset(report.model_versions) if report.model_versions else session.spec.model_versions
            if ready != pool.fleet.workers[worker].spec.model_versions:
                pool.worker_serves(worker, ready, now)
                log.info("worker_serves", worker=worker, pool=session.pool, versions=sorted(ready))
            events = pool.worker_reported(worker, convert.to_report(report), now)
            if events:
                self._apply(pool, events)

    def worker_left(self, session: WorkerSession, cause: str) -> None:
        """A worker's session is over: no new work from this moment. Does nothing for a session that is over already.

        `cause` is "stream", "silent" or "replaced".
        """
        session.close()
        if self._workers.get(session.spec.worker) is not session:
            return
        del self._workers[session.spec.worker]
        if session.pool in self._pools:
            self._pools[session.pool].worker_left(session.spec.worker, self._clock.monotonic())
        WORKERS_LOST.labels(session.pool, cause).inc()
        log.warning("worker_left", worker=session.spec.worker, pool=session.pool, cause=cause)

    def workers(self, pool: str = "") -> pb.ListWorkersResponse:
        """The live workers of a pool, or all, by id: who they are, what they told last, what they hold."""
        now = self._clock.monotonic()
        states = []
        for name, session in sorted(self._workers.items()):
            if pool in ("", session.pool):
                owned = self._pools.get(session.pool)
                known = owned.fleet.workers[name] if owned is not None else None
                states.append(convert.worker_state(session, known, now))
        return pb.ListWorkersResponse(workers=states)

    def preempt(self, worker: str, request_ids: Iterable[str]) -> bool:
        """Asks a worker to interrupt requests. False when it is not there or does not read."""
        session = self._workers.get(worker)
        frame = pb.ReportCapacityResponse(preempt=pb.Preempt(request_ids=request_ids))
        return session is not None and session.send(frame)

    def drain_worker(self, worker: str, reason: str) -> bool:
        """Asks a worker to finish what it has; it gets no new work from this moment. False when it is not there."""
        session = self._workers.get(worker)
        if session is None:
            return False
        if session.pool in self._pools:
            self._pools[session.pool].drain_worker(worker)
        return session.send(pb.ReportCapacityResponse(drain=pb.Drain(reason=reason)))

    # ---- time and life -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """What the passing of time brings; call it every `tick_seconds`."""
        now = self._clock.monotonic()
        for gone in [gone for gone, at in self._gone.items() if at <= now]:
            del self._gone[gone]
            self._abandon(*gone, now)
        for pool in self._pools.values():
            for worker in pool.silent_workers(now, self._heartbeat):
                self.worker_left(self._workers[worker], "silent")
            events = pool.tick(now)
            if events:
                self._apply(pool, events)
        self._granting.expire(now)
        if now >= self._next_publish:
            self._next_publish = now + _PUBLISH_SECONDS
            for name, pool in self._pools.items():
                self._metrics[name].publish(pool, now)

    def drain(self) -> None:
        """Sends waiting requests elsewhere and refuses new ones."""
        self._draining = True
        now = self._clock.monotonic()
        for pool in self._pools.values():
            self._apply(pool, pool.drain(now))

    # ---- inside --------------------------------------------------------------------------------------------------

    def _pool(self, name: str, *, born: float | None = None) -> Pool:
        pool = self._pools.get(name)
        if pool is None:
            since = self._born if born is None else born
            pool = self._pools[name] = Pool(name, self._limits, now=since, chance=self._chance)
            self._metrics[name] = PoolMetrics(name)
        return pool

    def epoch(self, pool: str) -> int:
        """This process's term as the pool's owner; 0: there is none."""
        return self._epochs.get(pool, 0)

    def _abandon(self, instance: str, name: str, now: float) -> None:
        pool = self._pools.get(name)
        if pool is None:
            return
        count, events = pool.abandon(instance, now)
        if count:
            GATEWAYS_ABANDONED.inc()
            log.warning("gateway_abandoned", gateway=instance, pool=name, shares=count)
        self._apply(pool, events)

    def _apply(self, pool: Pool, events: list[Event]) -> None:
        """Answers everybody who waited for these events; has workers interrupt what must make room."""
        for event in events:
            if isinstance(event, Interrupt):
                if self.preempt(event.worker, event.request_ids):
                    self._metrics[pool.name].interrupted(len(event.request_ids))
                continue
            self._answer(event.request.request_id, self._reply(pool, event))

    def _answer(self, request_id: str, reply: pb.AdmissionReply) -> None:
        for number, waiter in enumerate(self._waiters.pop(request_id, ())):
            if not waiter.done():
                # The stream writes its own call id into the message, so each waiter gets one of its own.
                waiter.set_result(reply if number == 0 else _copy(reply))

    def _fail(self, request_id: str, error: WeirError) -> None:
        for waiter in self._waiters.pop(request_id, ()):
            if not waiter.done():
                waiter.set_exception(error)

    def _reply(self, pool: Pool, answer: Granted | Refused) -> pb.AdmissionReply:
        request = answer.request
        metrics = self._metrics[pool.name]
        if isinstance(answer, Granted):
            metrics.granted(request.queue_class, answer.waited)
            session = self._workers[answer.worker]
            blocks = pool.fleet.reservations[request.request_id].blocks
            signed = self._granting.grant(request, session, epoch=self.epoch(pool.name), blocks=blocks)
            return _contended(pool, convert.granted(signed, session.spec, answer))
        metrics.left(request.queue_class, answer.outcome)
        return _contended(pool, convert.rejected(answer))

    def _used(self, pool: Pool, credit: str, request: Request, now: float) -> pb.AdmissionReply:
        answer = pool.use(credit, request, now)
        if answer is None:
            raise WeirError(Reason.GRANT_EXPIRED, "There is no such credit.", limit="credit")
        self._metrics[pool.name].ran_on_credit(request.queue_class)
        return _contended(pool, convert.used(answer))

    def _gave_up(self, pool: Pool, request_id: str, waiter: Waiter) -> None:
        """A waiter is done; when it was cancelled and nobody else waits, so is the request."""
        if not waiter.cancelled():
            return
        waiters = self._waiters.get(request_id)
        if waiters is None or waiter not in waiters:
            return
        waiters.discard(waiter)
        if waiters:
            return
        del self._waiters[request_id]
        waiting = pool.waiting(request_id)
        known, events = pool.cancel(request_id, self._clock.monotonic())
        if known and waiting is not None:
            self._metrics[pool.name].left(waiting.queue_class, Outcome.CANCELLED)
        self._apply(pool, events)


def _contended(pool: Pool, reply: pb.AdmissionReply) -> pb.AdmissionReply:
    """The reply, which also tells whether anybody waits."""
    reply.contended = len(pool.backlog) > 0
    return reply


def _copy(reply: pb.AdmissionReply) -> pb.AdmissionReply:
    copy = pb.AdmissionReply()
    copy.CopyFrom(reply)
    return copy
