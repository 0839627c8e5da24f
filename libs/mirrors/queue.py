"""The queue of mirrored requests: bounded, out of users' way, on their own quota, gone with their rollout.

Handing one over costs the user's path a few checks and an append; whatever comes after happens in tasks of this class.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.limiter import QuotaClient
from libs.mirrors.metrics import Fate, MirrorMetrics
from libs.mirrors.settings import ShadowSettings
from libs.outcomes import ArmKey, Begun, Ran, Recorder
from libs.registry import RegistrySnapshot
from libs.rollouts import SHADOW_TENANT, capacity_share, in_force, phase_of
from libs.routing import Mirror
from libs.telemetry import get_logger
from libs.telemetry.tracing import Span, linked

log = get_logger(__name__)
T = TypeVar("T")
_REFUSED = frozenset(
    {
        Reason.REJECTED_NO_CAPACITY,
        Reason.NO_WORKERS,
        Reason.REJECTED_QUEUE_FULL,
        Reason.REJECTED_DEADLINE,
        Reason.EVICTED_TTL,
        Reason.EVICTED_DEADLINE,
        Reason.EVICTED_SHED,
        Reason.DRAINING,
        Reason.DEPENDENCY_UNAVAILABLE,
        Reason.CONTEXT_LENGTH_EXCEEDED,
    }
)
"""Nothing ran."""
_BUSY = _REFUSED - {Reason.CONTEXT_LENGTH_EXCEEDED} | {Reason.PREEMPTED}
"""Another copy would have met the same."""
_QUOTA_SECONDS = 1.0
_LATE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Copy(Generic[T]):
    """A request that is to be answered a second time."""

    asked: T
    target: Mirror
    """Where it goes."""
    arm: ArmKey
    """Where it counts."""
    route: str
    """The route whose objectives the user's request has."""
    share: float
    """Of the pool, what its version may hold."""
    deadline: Deadline


class Dropped(Exception):
    """The copy is not to be answered."""

    def __init__(self, fate: Fate) -> None:
        super().__init__(fate.value)
        self.fate = fate


class MirrorQueue(ABC, Generic[T]):
    """One per process and event loop."""

    def __init__(
        self,
        *,
        quota: QuotaClient,
        evidence: Recorder,
        snapshot: Callable[[], RegistrySnapshot],
        settings: ShadowSettings,
        clock: Clock,
        metrics: MirrorMetrics,
    ) -> None:
        """`snapshot` gives the registry as it is known now."""
        self._quota = quota
        self._evidence = evidence
        self._snapshot = snapshot
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._queue: deque[tuple[Copy[T], str]] = deque()
        self._tasks: dict[asyncio.Task[None], Copy[T]] = {}
        self._fates: dict[asyncio.Task[None], Fate] = {}  # of tasks that were cancelled, and why
        self._closed: dict[str, float] = {}  # pools that had no room to spare → when to ask again, monotonic seconds
        self._draining = False

    @abstractmethod
    async def answer(self, copy: Copy[T], trace: Span) -> Ran:
        """Answers it, on the `lease` of what it takes, and has it compared.

        :raises WeirError: it was refused, or failed. What else it raises is a fault of ours, and ends this copy alone.
        """

    @property
    def active(self) -> int:
        """Copies that wait or are being answered."""
        return len(self._queue) + len(self._tasks)

    def take(self, asked: T, target: Mirror, arm: ArmKey, *, route: str, traceparent: str) -> None:
        """A request that is to be answered a second time; `arm` is where its copy counts, `traceparent` the user's."""
        rollout = _in_shadow(self._snapshot(), arm)
        fate = None
        if self._draining or rollout is None:
            fate = Fate.DRAINED if self._draining else Fate.WITHDRAWN
        elif self._is_closed(target.pool):
            fate = Fate.REFUSED
        elif not self._settings.concurrent or len(self._queue) >= self._settings.queue:
            fate = Fate.QUEUE_FULL
        if fate is not None:
            self._metrics.ended(fate)
            return
        deadline = Deadline.after(self._settings.deadline, self._clock)
        self._queue.append((Copy(asked, target, arm, route, capacity_share(rollout), deadline), traceparent))
        self._pump()

    def update(self, snapshot: RegistrySnapshot) -> None:
        """The registry has changed: copies of rollouts that are not in their shadow phase any more end at once."""
        arms = {each.arm for each in (*(copy for copy, _ in self._queue), *self._tasks.values())}
        gone = {arm for arm in arms if _in_shadow(snapshot, arm) is None}
        if gone:
            self._drop(lambda copy: copy.arm in gone, Fate.WITHDRAWN)

    async def drain(self) -> None:
        """Take no more, end all that there are, and return once they are over."""
        self._draining = True
        self._drop(lambda _: True, Fate.DRAINED)
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    @contextlib.asynccontextmanager
    async def lease(
        self, reserve: quota_pb2.Reserve, deadline: Deadline, trace: Span
    ) -> AsyncIterator[quota_pb2.Settle]:
        """Holds what the copy may take on the quota of mirrored traffic; what is in the message at the end was used.
        What fails midway counts in full, what did not begin not at all.

        :raises Dropped: there is none, or nobody could be asked for it: copies are not worth a guess.
        """
        reserve.tenant = SHADOW_TENANT
        used = quota_pb2.Settle(
            tenant=SHADOW_TENANT,
            model=reserve.model,
            request_id=reserve.request_id,
            model_version=reserve.model_version,
            rows=reserve.rows,
        )
        within = Deadline.after(_QUOTA_SECONDS, self._clock).earlier(deadline)
        try:
            held = await self._quota.start_reserve(reserve, deadline=within, traceparent=trace.traceparent)
        except WeirError as error:
            trace.end(error.reason.name)
            raise Dropped(Fate.QUOTA) from None
        except asyncio.CancelledError:  # it may be reserved by now
            self._quota.settle(used)
            raise
        try:
            if held.local:
                raise Dropped(Fate.QUOTA)
            used.tokens, used.prompt_tokens = reserve.tokens, reserve.prompt_tokens
            yield used
        except WeirError as error:
            if error.reason in _REFUSED:
                used.tokens = used.prompt_tokens = 0
            raise
        finally:
            self._quota.settle(used)

    def _pump(self) -> None:
        while self._queue and len(self._tasks) < self._settings.concurrent:
            copy, traceparent = self._queue.popleft()
            if self._is_closed(copy.target.pool):
                self._metrics.ended(Fate.REFUSED)
                continue
            task = asyncio.get_running_loop().create_task(self._run(copy, traceparent), name="mirrored request")
            self._tasks[task] = copy
            task.add_done_callback(self._done)
        self._metrics.queued.set(len(self._queue))
        self._metrics.running.set(len(self._tasks))

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        fate = self._fates.pop(task, Fate.DRAINED)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            fate = Fate.ANSWERED
        elif isinstance(error, Dropped):
            fate = error.fate
        elif error is not None:  # a fault of ours; its text may quote a prompt
            fate = Fate.ERROR
            log.error("mirror_failed", error=type(error).__name__)
        self._metrics.ended(fate)
        self._pump()

    def _drop(self, which: Callable[[Copy[T]], bool], fate: Fate) -> None:
        kept = deque(each for each in self._queue if not which(each[0]))
        for _ in range(len(self._queue) - len(kept)):
            self._metrics.ended(fate)
        self._queue = kept
        for task, copy in self._tasks.items():
            if which(copy):
                self._fates.setdefault(task, fate)
                task.cancel()
        self._pump()

    async def _run(self, copy: Copy[T], traceparent: str) -> None:
        with linked("shadow", traceparent) as trace:
            trace.set("weir.rollout", copy.arm.rollout_id)
            trace.set("weir.arm", copy.arm.arm)
            given, version = copy.deadline.timeout(self._clock) + _LATE_SECONDS, copy.target.model_version
            begun = self._evidence.mirror_began(copy.arm, given=given, model_version=version, route=copy.route)
            try:
                # The worker knows the deadline; this is for one that does not keep to it.
                async with asyncio.timeout(given):
                    ran = await self.answer(copy, trace)
                self._evidence.mirrored(copy.arm, ran, route=copy.route, begun=begun)
            except TimeoutError:
                trace.end(Reason.DEADLINE_EXCEEDED.name)
                raise Dropped(Fate.DEADLINE) from None
            except WeirError as error:
                trace.end(error.reason.name)
                raise Dropped(self._failed(copy, error, begun)) from None
            finally:
                self._evidence.over(begun)

    def _failed(self, copy: Copy[T], error: WeirError, begun: Begun | None) -> Fate:
        version = copy.target.model_version
        self._evidence.mirror_failed(copy.arm, error, model_version=version, route=copy.route, begun=begun)
        if error.reason in _BUSY:
            self._closed[copy.target.pool] = self._clock.monotonic() + self._settings.pause
        if error.reason in _REFUSED:
            return Fate.REFUSED
        if error.reason is Reason.PREEMPTED:
            return Fate.INTERRUPTED
        return Fate.DEADLINE if error.reason is Reason.DEADLINE_EXCEEDED else Fate.ERROR

    def _is_closed(self, pool: str) -> bool:
        return bool(self._closed) and self._clock.monotonic() < self._closed.get(pool, 0.0)


def _in_shadow(snapshot: RegistrySnapshot, arm: ArmKey) -> registry_pb2.Rollout | None:
    """The arm's rollout, while its requests are mirrored."""
    rollout = in_force(snapshot, arm.alias)
    if rollout is None or rollout.id != arm.rollout_id or phase_of(rollout) != registry_pb2.ROLLOUT_PHASE_SHADOW:
        return None
    return rollout
