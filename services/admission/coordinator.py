"""Admission's shell between streams and pools: who waits for which answer, who holds which grant. No I/O.

One event loop; every method returns without waiting. Time is read once per call.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from weir.admission.v1 import admission_pb2 as pb

from libs.clock import Clock
from libs.deadlines import to_seconds
from libs.errors import Reason, WeirError
from libs.grants import KEY_BYTES, GrantSigner
from libs.telemetry import get_logger
from services.admission import convert
from services.admission.metrics import GATEWAYS_ABANDONED, WORKERS_LOST, PoolMetrics
from services.admission.policy.limits import Limits
from services.admission.policy.model import (
    Event,
    Granted,
    Interrupt,
    Outcome,
    Queued,
    Refused,
    Request,
    WorkerSpec,
)
from services.admission.policy.pool import Pool
from services.admission.worker_session import WorkerSession

log = get_logger(__name__)
_PUBLISH_SECONDS = 1.0

Waiter = asyncio.Future[pb.AdmissionReply]


class _Kept(NamedTuple):
    """A grant that was given out."""

    signed: pb.SignedGrant
    what: tuple[str, str, int, int, int, float]  # key id, version, caps, share
    expiry: float


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
        self._random_bytes = random_bytes
        self._grant_lifetime = grant_lifetime
        self._heartbeat = worker_heartbeat
        self._gateway_grace = gateway_grace
        self._chance = chance
        self._pools: dict[str, Pool] = {}
        self._metrics: dict[str, PoolMetrics] = {}
        self._workers: dict[str, WorkerSession] = {}
        self._waiters: dict[str, set[Waiter]] = {}
        self._grants: dict[str, _Kept] = {}  # by request
        self._grant_expiries: deque[tuple[float, str]] = deque()
        self._gateways: dict[tuple[str, str], int] = {}  # gateway instance, pool → open streams
        self._gone: dict[tuple[str, str], float] = {}  # likewise → when its shares there are given up
        self._born = clock.monotonic()
        self._next_publish = 0.0
        self._draining = False

    @property
    def pools(self) -> dict[str, Pool]:
        """By name; to read."""
        return self._pools

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
            if request_id in pool.ledger.reservations or pool.waiting(request_id) is not None:
                return name
        return ""

    def admit(self, admit: pb.Admit, *, deadline: float, owner: str) -> pb.AdmissionReply | Waiter:
        """The answer, or a future of it when the request has to wait. Cancelling the future gives the wait up.

        :raises WeirError: INVALID_REQUEST naming the field.
        """
        now = self._clock.monotonic()
        request = convert.to_request(admit, deadline=deadline, owner=owner, now=now)
        pool = self._pool(admit.pool)
        answer, events = pool.admit(request, now)
        if events:
            self._apply(pool, events)
        if isinstance(answer, Queued):
            waiter: Waiter = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(request.request_id, set()).add(waiter)
            waiter.add_done_callback(functools.partial(self._gave_up, pool, request.request_id))
            return waiter
        reply = self._reply(pool, answer)
        if request.request_id in self._waiters:  # it asked before, for something else
            self._answer(request.request_id, _copy(reply))
        return reply

    def release(self, release: pb.Release) -> pb.AdmissionReply:
        """The reply to Release; idempotent, `known` is false from the second time on."""
        request_id = release.request_id
        self._grants.pop(request_id, None)
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
                return convert.released(True)
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
        session = self._new_session(hello, spec)
        self._workers[spec.worker] = session
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
            session.report = report
            pool = self._pools[session.pool]
            now, worker = self._clock.monotonic(), session.spec.worker
            # Those of the hello are meant when the report names none.
            ready = frozenset(report.model_versions) if report.model_versions else session.spec.model_versions
            if ready != pool.ledger.workers[worker].spec.model_versions:
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
        self._pools[session.pool].worker_left(session.spec.worker, self._clock.monotonic())
        WORKERS_LOST.labels(session.pool, cause).inc()
        log.warning("worker_left", worker=session.spec.worker, pool=session.pool, cause=cause)

    def workers(self, pool: str = "") -> pb.ListWorkersResponse:
        """The live workers of a pool, or all, by id: who they are, what they told last, what they hold."""
        now = self._clock.monotonic()
        states = []
        for name, session in sorted(self._workers.items()):
            if pool in ("", session.pool):
                account = self._pools[session.pool].ledger.workers[name]
                states.append(convert.worker_state(session.hello, session.report, account, now))
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
        while self._grant_expiries and self._grant_expiries[0][0] <= now:
            _, request_id = self._grant_expiries.popleft()
            kept = self._grants.get(request_id)
            if kept is not None and kept.expiry <= now:
                del self._grants[request_id]
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

    def _pool(self, name: str) -> Pool:
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = Pool(name, self._limits, now=self._born, chance=self._chance)
            self._metrics[name] = PoolMetrics(name)
        return pool

    def _new_session(self, hello: pb.WorkerHello, spec: WorkerSpec) -> WorkerSession:
        key = self._random_bytes(KEY_BYTES)
        signer = GrantSigner(
            worker=spec.worker,
            key_id=self._random_bytes(8).hex(),
            key=key,
            clock=self._clock,
            random_bytes=self._random_bytes,
            lifetime=self._grant_lifetime,
        )
        return WorkerSession(hello=hello, spec=spec, key=key, signer=signer)

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

    def _reply(self, pool: Pool, answer: Granted | Refused) -> pb.AdmissionReply:
        request = answer.request
        metrics = self._metrics[pool.name]
        if isinstance(answer, Granted):
            metrics.granted(request.queue_class, answer.waited)
            session = self._workers[answer.worker]
            return convert.granted(self._grant(request, session), session.spec, answer)
        metrics.left(request.queue_class, answer.outcome)
        return convert.rejected(answer)

    def _grant(self, request: Request, session: WorkerSession) -> pb.SignedGrant:
        """The request's grant: the one it has while that is good, so that a repeated question cannot run twice."""
        now = self._clock.monotonic()
        # What is granted, and with which key: a share for something else needs a grant of its own.
        what = (
            session.signer.key_id,
            request.model_version,
            request.prompt_tokens,
            request.max_output_tokens,
            request.choices,
            request.kv_share,
        )
        kept = self._grants.get(request.request_id)
        if kept is not None and kept.what == what and kept.expiry > now:
            return kept.signed
        signed = session.signer.sign(
            request_id=request.request_id,
            model_version=request.model_version,
            tenant=request.tenant,
            prompt_tokens=request.prompt_tokens,
            max_output_tokens=request.max_output_tokens,
            choices=request.choices,
            kv_share=request.kv_share,
        )
        expiry = now + self._grant_lifetime
        self._grants[request.request_id] = _Kept(signed, what, expiry)
        self._grant_expiries.append((expiry, request.request_id))
        return signed

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


def _copy(reply: pb.AdmissionReply) -> pb.AdmissionReply:
    copy = pb.AdmissionReply()
    copy.CopyFrom(reply)
    return copy
