"""The queue of mirrored requests and what answers them: quota → admission → worker → comparison.

Handing one over costs the user's path a few checks and an append; whatever comes after happens in tasks of this class.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from weir.admission.v1 import admission_pb2
from weir.registry.v1 import registry_pb2

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.rollouts import SHADOW_TENANT, capacity_share, in_force, phase_of
from libs.routing import Mirror
from libs.telemetry import get_logger
from libs.telemetry.tracing import Span, linked
from services.gateway.internal import Run
from services.gateway.outcomes import Begun
from services.gateway.policy.finals import ArmKey, FinalAnswer
from services.gateway.policy.spec import Spec
from services.gateway.ports import Mirrored, QuotaPort
from services.gateway.shadow import metrics
from services.gateway.shadow.compare import comparable, compare, repeatable
from services.gateway.shadow.metrics import Fate, Verdict
from services.gateway.shadow.settings import ShadowSettings

log = get_logger(__name__)
_REFUSED = frozenset(
    {
        Reason.REJECTED_NO_CAPACITY,
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


class Runs(Protocol):
    """What generates; `services.gateway.serve.Pipeline` fits."""

    async def encode(self, model_version: str, spec: Spec) -> list[int]:
        """The prompt's tokens for a version."""

    async def run(self, run: Run) -> FinalAnswer:
        """Generate, to the end."""


class Evidence(Protocol):
    """Where evidence about arms goes; `services.gateway.outcomes.Outcomes` fits."""

    def mirror_began(self, arm: ArmKey, *, given: float, model_version: str, route: str) -> Begun | None:
        """A copy is about to be made; `over` must follow."""

    def mirrored(self, arm: ArmKey, answer: FinalAnswer, *, route: str, model: str, begun: Begun | None) -> None:
        """A copy was answered."""

    def mirror_failed(
        self, arm: ArmKey, error: WeirError, *, model_version: str, route: str, begun: Begun | None
    ) -> None:
        """A copy was not."""

    def over(self, begun: Begun | None) -> None:
        """A copy is over, counted or not."""

    def score(self, arm: ArmKey, metric: str, value: float) -> None:
        """A score of a copy's answer."""


@dataclass(frozen=True, slots=True)
class _Job:
    asked: Mirrored
    target: Mirror
    arm: ArmKey
    share: float
    deadline: Deadline

    @property
    def route(self) -> str:
        """The route whose objectives the user's request has."""
        return "batch" if self.asked.spec.batch else "generate"


class _Dropped(Exception):
    """The copy is not to be answered."""

    def __init__(self, fate: Fate) -> None:
        super().__init__(fate.value)
        self.fate = fate


class Mirrors:
    """Implements `MirrorPort`. One per process and event loop."""

    def __init__(
        self,
        runs: Runs,
        *,
        quota: QuotaPort,
        evidence: Evidence,
        snapshot: Callable[[], RegistrySnapshot],
        settings: ShadowSettings,
        clock: Clock,
    ) -> None:
        """`snapshot` gives the registry as it is known now."""
        self._runs = runs
        self._quota = quota
        self._evidence = evidence
        self._snapshot = snapshot
        self._settings = settings
        self._clock = clock
        self._queue: deque[_Job] = deque()
        self._tasks: dict[asyncio.Task[None], _Job] = {}
        self._fates: dict[asyncio.Task[None], Fate] = {}  # of tasks that were cancelled, and why
        self._closed: dict[str, float] = {}  # pools that had no room to spare → when to ask again, monotonic seconds
        self._draining = False

    @property
    def active(self) -> int:
        """Copies that wait or are being answered."""
        return len(self._queue) + len(self._tasks)

    def mirror(self, request: Mirrored) -> None:
        """See `MirrorPort`."""
        target = request.route.mirror
        if target is None:
            raise ValueError("the request is not to be mirrored")
        rollout = self._in_shadow(request.arm.alias, request.arm.rollout_id)
        if self._draining or rollout is None:
            metrics.ended(Fate.DRAINED if self._draining else Fate.WITHDRAWN)
            return
        if self._is_closed(target.pool):
            metrics.ended(Fate.REFUSED)
            return
        if not self._settings.concurrent or len(self._queue) >= self._settings.queue:
            metrics.ended(Fate.QUEUE_FULL)
            return
        deadline = Deadline.after(self._settings.deadline, self._clock)
        self._queue.append(_Job(request, target, request.copy_arm, capacity_share(rollout), deadline))
        self._pump()

    def update(self, snapshot: RegistrySnapshot) -> None:
        """The registry has changed: copies of rollouts that are not in their shadow phase any more end at once."""
        if not self.active:
            return
        gone = {
            each.arm
            for each in (*self._queue, *self._tasks.values())
            if _in_shadow(snapshot, each.arm.alias, each.arm.rollout_id) is None
        }
        if gone:
            self._drop(lambda job: job.arm in gone, Fate.WITHDRAWN)

    async def drain(self) -> None:
        """Take no more, end all that there are, and return once they are over."""
        self._draining = True
        self._drop(lambda _: True, Fate.DRAINED)
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # ---- the queue -----------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        while self._queue and len(self._tasks) < self._settings.concurrent:
            job = self._queue.popleft()
            if self._is_closed(job.target.pool):
                metrics.ended(Fate.REFUSED)
                continue
            task = asyncio.get_running_loop().create_task(self._answer(job), name="mirrored request")
            self._tasks[task] = job
            task.add_done_callback(self._done)
        metrics.QUEUED.set(len(self._queue))
        metrics.RUNNING.set(len(self._tasks))

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        fate = self._fates.pop(task, None)
        if task.cancelled():
            metrics.ended(fate or Fate.DRAINED)
        else:
            error = task.exception()
            if error is None:
                metrics.ended(Fate.ANSWERED)
            elif isinstance(error, _Dropped):
                metrics.ended(error.fate)
            else:  # a fault of ours; its text may quote a prompt
                metrics.ended(Fate.ERROR)
                log.error("mirror_failed", error=type(error).__name__)
        self._pump()

    def _drop(self, which: Callable[[_Job], bool], fate: Fate) -> None:
        kept = [job for job in self._queue if not which(job)]
        for _ in range(len(self._queue) - len(kept)):
            metrics.ended(fate)
        self._queue = deque(kept)
        for task, job in self._tasks.items():
            if which(job):
                self._fates.setdefault(task, fate)
                task.cancel()
        self._pump()

    # ---- one copy ------------------------------------------------------------------------------------------------

    async def _answer(self, job: _Job) -> None:
        asked = job.asked
        with linked("shadow", asked.traceparent) as trace:
            trace.set("weir.rollout", job.arm.rollout_id)
            trace.set("weir.arm", job.arm.arm)
            trace.set("gen_ai.request.model", job.arm.alias)
            trace.set("gen_ai.response.model", job.target.model_version)
            given, version = job.deadline.timeout(self._clock) + _LATE_SECONDS, job.target.model_version
            begun = self._evidence.mirror_began(job.arm, given=given, model_version=version, route=job.route)
            try:
                # The worker knows the deadline; this is for one that does not keep to it.
                async with asyncio.timeout(given):
                    prompt, same_tokens = await self._prompt(job)
                    answer = await self._generate(job, prompt, trace)
                self._evidence.mirrored(job.arm, answer, route=job.route, model=job.arm.alias, begun=begun)
            except TimeoutError:
                trace.end(Reason.DEADLINE_EXCEEDED.name)
                raise _Dropped(Fate.DEADLINE) from None
            except WeirError as error:
                trace.end(error.reason.name)
                raise _Dropped(self._failed(job, error, begun)) from None
            finally:
                self._evidence.over(begun)
        # The user's answer may take longer, and needs no task to be waited for.
        asked.answer.add_done_callback(lambda users: self._compare(job, users, answer, same_tokens=same_tokens))

    async def _prompt(self, job: _Job) -> tuple[list[int], bool]:
        """The prompt in the candidate's tokens, and whether both versions mean the same by tokens."""
        versions, asked = self._snapshot().model_versions, job.asked
        users, candidate = versions.get(asked.route.model_version), versions.get(job.target.model_version)
        alike = (
            users is not None and candidate is not None and _alike(users.tokenizer_sha256, candidate.tokenizer_sha256)
        )
        if alike and users is not None and candidate is not None:
            templates = _alike(users.chat_template_sha256, candidate.chat_template_sha256)
            if templates or asked.spec.messages is None:
                return list(asked.prompt), True
        prompt = await self._runs.encode(job.target.model_version, asked.spec)
        return prompt, alike or prompt == list(asked.prompt)

    async def _generate(self, job: _Job, prompt: list[int], trace: Span) -> FinalAnswer:
        asked, parameters = job.asked, job.asked.parameters
        copy_id = f"{asked.request_id}~shadow"
        most = len(prompt) + parameters.max_tokens * parameters.n
        await self._reserve(job, copy_id, prompt, most, trace)
        used = most  # what fails midway counts in full
        prompt_used = len(prompt)
        try:
            answer = await self._runs.run(
                Run(
                    request_id=copy_id,
                    # Copies of different tenants' prompts must not meet in a prefix cache, nor the copy the user's.
                    tenant=f"{SHADOW_TENANT}/{asked.identity.tenant}",
                    model_version=job.target.model_version,
                    pool=job.target.pool,
                    zones=job.target.zones,
                    queue_class=admission_pb2.QUEUE_CLASS_SHADOW,
                    prompt=prompt,
                    parameters=parameters,
                    version_share=job.share,
                    deadline=job.deadline,
                    traceparent=trace.traceparent,
                )
            )
            usage = answer.end.usage
            used, prompt_used = usage.prompt_tokens + usage.completion_tokens, usage.prompt_tokens
        except WeirError as error:
            if error.reason in _REFUSED:
                used = prompt_used = 0
            raise
        finally:
            self._settle(job, copy_id, used, prompt_used)
        return answer

    async def _reserve(self, job: _Job, copy_id: str, prompt: list[int], most: int, trace: Span) -> None:
        parameters = job.asked.parameters
        try:
            lease = await self._quota.start_reserve(
                tenant=SHADOW_TENANT,
                model=job.arm.alias,
                request_id=copy_id,
                tokens=most,
                prompt_tokens=len(prompt),
                max_output_tokens=parameters.max_tokens,
                choices=parameters.n,
                model_version=job.target.model_version,
                request_counted=False,
                deadline=Deadline.after(_QUOTA_SECONDS, self._clock).earlier(job.deadline),
                traceparent=trace.traceparent,
            )
        except WeirError as error:
            trace.end(error.reason.name)
            raise _Dropped(Fate.QUOTA) from None
        except asyncio.CancelledError:  # it may be reserved by now
            self._settle(job, copy_id, 0, 0)
            raise
        if lease.local:  # nobody could be asked, and copies are not worth a guess
            self._settle(job, copy_id, 0, 0)
            raise _Dropped(Fate.QUOTA)

    def _settle(self, job: _Job, copy_id: str, tokens: int, prompt_tokens: int) -> None:
        self._quota.settle(
            tenant=SHADOW_TENANT,
            model=job.arm.alias,
            request_id=copy_id,
            tokens=tokens,
            prompt_tokens=prompt_tokens,
            model_version=job.target.model_version,
        )

    def _failed(self, job: _Job, error: WeirError, begun: Begun | None) -> Fate:
        version = job.target.model_version
        self._evidence.mirror_failed(job.arm, error, model_version=version, route=job.route, begun=begun)
        if error.reason in _BUSY:
            self._closed[job.target.pool] = self._clock.monotonic() + self._settings.pause
        if error.reason in _REFUSED:
            return Fate.REFUSED
        if error.reason is Reason.PREEMPTED:
            return Fate.INTERRUPTED
        return Fate.DEADLINE if error.reason is Reason.DEADLINE_EXCEEDED else Fate.ERROR

    def _compare(
        self, job: _Job, users: asyncio.Future[FinalAnswer], answer: FinalAnswer, *, same_tokens: bool
    ) -> None:
        if users.cancelled() or not comparable(users.result()) or not comparable(answer):
            metrics.compared(Verdict.INCOMPARABLE)
            return
        if not same_tokens:
            metrics.compared(Verdict.UNCOUNTED)
            return
        found = compare(users.result(), answer, exactness=repeatable(job.asked.parameters))
        for name, value in found.scores():
            self._evidence.score(job.arm, name, value)
        if found.exact is None:
            metrics.compared(Verdict.UNCOUNTED)
        else:
            metrics.compared(Verdict.SAME if found.exact else Verdict.DIFFERENT)
        if found.first_difference is not None:
            metrics.FIRST_DIFFERENCE.observe(found.first_difference)

    def _is_closed(self, pool: str) -> bool:
        return bool(self._closed) and self._clock.monotonic() < self._closed.get(pool, 0.0)

    def _in_shadow(self, alias: str, rollout_id: str) -> registry_pb2.Rollout | None:
        return _in_shadow(self._snapshot(), alias, rollout_id)


def _in_shadow(snapshot: RegistrySnapshot, alias: str, rollout_id: str) -> registry_pb2.Rollout | None:
    """The rollout, while its requests are mirrored."""
    rollout = in_force(snapshot, alias)
    if rollout is None or rollout.id != rollout_id or phase_of(rollout) != registry_pb2.ROLLOUT_PHASE_SHADOW:
        return None
    return rollout


def _alike(one: str, other: str) -> bool:
    return bool(one) and one == other
