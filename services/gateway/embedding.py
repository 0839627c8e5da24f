"""Embeddings: the short path. Same identity, quota, safety, admission and audit as a generation; a unary call to a
worker for every part of the inputs that one grant is for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import grpc
from weir.admission.v1 import admission_pb2
from weir.registry.v1 import registry_pb2
from weir.worker.v1 import worker_pb2, worker_pb2_grpc

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError, from_rpc_error
from libs.routing import Route
from services.gateway import metrics, records
from services.gateway.catalog import Catalog
from services.gateway.clients.workers import WorkerStreams
from services.gateway.config import Settings
from services.gateway.identity import Caller
from services.gateway.outcomes import Begun, Outcomes
from services.gateway.policy.events import Accepted, Breakdown, End, Finish, Usage
from services.gateway.policy.finals import ArmKey
from services.gateway.policy.limits import State
from services.gateway.policy.parameters import invalid
from services.gateway.policy.spec import Spec
from services.gateway.policy.standing import RUNNING
from services.gateway.policy.turnover import jittered
from services.gateway.ports import AdmissionPort, AuditPort, QuotaPort, Reservation, RouterPort, SafetyPort
from services.gateway.refusals import outcome_of, with_limits
from services.gateway.request import broken_off, queue_class_of, time_limit
from services.gateway.text import TextModel

MAX_INPUTS = 256
Input = str | tuple[int, ...]
"""A text, or the ids of its tokens."""
_PASSED_ON = frozenset({Reason.MODEL_NOT_FOUND, Reason.DRAINING})
"""What a worker says that has done nothing, and that another one may not say."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors in the order of the inputs."""

    model_version: str
    vectors: list[list[float]]
    tokens: int
    simulated: bool
    # where the face has to tell them
    request_limit: State | None = None
    token_limit: State | None = None


@dataclass(slots=True)
class _Started:
    """How far a request is, for when it fails."""

    arrived: float
    given: float = 0.0
    latest: float = inf
    reservation: Reservation | None = None
    route: Route | None = None
    arm: ArmKey | None = None
    begun: Begun | None = None
    policies: tuple[str, ...] = ()
    asked: int = 0
    """Questions to admission."""


class Embedder:
    """Runs embedding requests."""

    def __init__(
        self,
        settings: Settings,
        *,
        catalog: Catalog,
        quota: QuotaPort,
        router: RouterPort,
        admission: AdmissionPort,
        safety: SafetyPort,
        workers: WorkerStreams,
        audit: AuditPort,
        outcomes: Outcomes,
        clock: Clock,
        chance: Callable[[], float],
    ) -> None:
        """`chance` gives numbers in [0, 1): for jitter."""
        self._settings = settings
        self._catalog = catalog
        self._quota = quota
        self._router = router
        self._admission = admission
        self._safety = safety
        self._workers = workers
        self._audit = audit
        self._outcomes = outcomes
        self._clock = clock
        self._chance = chance

    async def embed(self, model: str, inputs: Sequence[Input], caller: Caller, *, user: str = "") -> Embedded:
        """Embed texts, or what token ids spell, for the tenant's `user`.

        :raises WeirError: whatever refused it.
        """
        arrived = self._clock.monotonic()
        identity = caller.identity
        spec = caller.hinted(
            Spec(model=model, operation="embed", prompt="", client_request_id=caller.client_request_id, user=user)
        )
        started = _Started(arrived)
        try:
            if not 0 < len(inputs) <= MAX_INPUTS or not all(inputs):
                raise invalid("input", f"must hold 1 to {MAX_INPUTS} inputs, none of them empty")
            result = await self._embed(spec, inputs, caller, started)
        except WeirError as error:
            self._rejected(spec, caller, error, started)
            told = with_limits(error, identity, model, started.reservation, self._catalog)
            if told is error:
                raise
            raise told from error
        except asyncio.CancelledError:
            self._rejected(spec, caller, broken_off(started.latest, self._clock), started)
            raise
        except Exception:  # a fault of ours still gives the quota back and leaves its record
            self._rejected(spec, caller, WeirError(Reason.INTERNAL, "internal error"), started)
            raise
        self._quota.settle(
            tenant=identity.tenant,
            model=model,
            request_id=caller.request_id,
            tokens=result.tokens,
            prompt_tokens=result.tokens,
            model_version=result.model_version,
        )
        self._record(started, spec, caller, result)
        return result

    def _rejected(self, spec: Spec, caller: Caller, error: WeirError, started: _Started) -> None:
        if started.route is not None:  # else nothing was asked of the quota, and the name may be anything
            self._quota.settle(tenant=caller.identity.tenant, model=spec.model, request_id=caller.request_id, tokens=0)
        metrics.outcome("embed", outcome_of(error), error.reason.name).inc()
        self._outcomes.refused(
            route="embed",
            model=spec.model,
            asked=started.route,
            error=error,
            given=started.given,
            over_quota=False,
            begun=started.begun,
        )
        self._audit.write(
            records.rejected(
                now=self._clock.time(),
                source=f"{self._settings.service}/{self._settings.instance}",
                identity=caller.identity,
                spec=spec,
                model=self._catalog.told(spec.model),
                request_id=caller.request_id,
                error=error,
                trace_id=caller.traceparent[3:35],
                policies=started.policies,
            )
        )

    async def _embed(self, spec: Spec, inputs: Sequence[Input], caller: Caller, started: _Started) -> Embedded:
        model = spec.model
        tenant = self._catalog.tenant(caller.identity.tenant)
        if self._audit.full and tenant.audit_required:
            raise WeirError(
                Reason.DEPENDENCY_UNAVAILABLE, "this request could not be audited", retry_after=self._soon(5.0)
            )
        time = time_limit(tenant, caller.remaining, self._settings.default_deadline, self._clock)
        started.given, started.latest, deadline = time.given, time.latest, time.deadline
        asked = self._catalog.question(caller.identity.tenant, model, user=spec.user, session=spec.session)
        route, _ = await self._router.start_resolve(asked, deadline=deadline, traceparent=caller.traceparent)
        started.arm, started.route = self._catalog.arm_key(model, route), route
        started.begun = self._outcomes.began(
            started.arm,
            asked,
            given=started.given,
            model_version=route.model_version,
            route="embed",
            tier=route.tier,
        )
        version = self._catalog.version(route.model_version)
        text = await self._catalog.text(version, deadline.remaining(self._clock))
        tokens = await self._fitting(inputs, text, caller, model, version)  # before anybody reads them
        started.policies = self._catalog.policies(tenant, version)
        texts = [given if isinstance(given, str) else text.decode(given) for given in inputs]
        checked = await self._safety.start_check(
            tenant=caller.identity.tenant,
            policies=started.policies,
            texts=texts,
            request_id=caller.request_id,
            deadline=deadline,
            traceparent=caller.traceparent,
        )
        started.policies = checked.policies
        if checked.texts is not None:
            kept = zip(inputs, texts, checked.texts, strict=True)
            tokens = await self._fitting(
                [given if was == now else now for given, was, now in kept], text, caller, model, version
            )
        longest, total = max(map(len, tokens)), sum(map(len, tokens))
        started.reservation = reservation = await self._quota.start_reserve(
            tenant=caller.identity.tenant,
            model=model,
            request_id=caller.request_id,
            tokens=total,
            prompt_tokens=longest,  # held to the tenant's context, which is about one input
            model_version=route.model_version,
            request_counted=caller.identity.request_counted,
            deadline=deadline,
            traceparent=caller.traceparent,
        )
        admit = admission_pb2.Admit(
            tenant=caller.identity.tenant,
            weight=tenant.weight or 1.0,
            queue_class=queue_class_of(tenant, batch=False, over_quota=False),
            pool=route.pool,
            model_version=route.model_version,
            zones=route.zones,
            choices=1,
        )
        vectors: list[list[float]] = []
        simulated = False
        for part in parts_of(tokens, version.context_length):
            response = await self._granted(admit, part, caller, deadline, started)
            vectors += (list(vector.values) for vector in response.vectors)
            simulated = response.simulated
        told = caller.identity.request_counted
        return Embedded(
            model_version=route.model_version,
            vectors=vectors,
            tokens=total,
            simulated=simulated,
            request_limit=None if told else reservation.requests,
            token_limit=None if told else reservation.tokens,
        )

    async def _fitting(
        self, inputs: Sequence[Input], text: TextModel, caller: Caller, model: str, version: registry_pb2.ModelVersion
    ) -> list[list[int]]:
        """Their tokens.

        :raises WeirError: CONTEXT_LENGTH_EXCEEDED; INVALID_REQUEST for ids outside the vocabulary.
        """
        limits = self._catalog.limits(caller.identity.tenant, model, version)
        context = min(limits.context_length, limits.max_context or limits.context_length)
        if any(not isinstance(given, str) and max(given) >= text.vocabulary_size for given in inputs):
            raise invalid("input", "a token id is outside the vocabulary")
        tokens = [
            await asyncio.to_thread(text.encode, given) if isinstance(given, str) else list(given) for given in inputs
        ]
        if max(map(len, tokens)) > context:
            raise WeirError(Reason.CONTEXT_LENGTH_EXCEEDED, f"an input exceeds {context} tokens", limit="input")
        return tokens

    async def _granted(
        self,
        admit: admission_pb2.Admit,
        inputs: Sequence[Sequence[int]],
        caller: Caller,
        deadline: Deadline,
        started: _Started,
    ) -> worker_pb2.EmbedResponse:
        """Embed inputs under one grant; under another one where the worker has unloaded the version or is about to
        leave."""
        request = worker_pb2.EmbedRequest(
            model_version=admit.model_version, inputs=[worker_pb2.Tokens(ids=ids) for ids in inputs]
        )
        admit.prompt_tokens = sum(map(len, inputs))
        while True:
            started.asked += 1
            # Each question has an id of its own: a grant, and what gives it back, is for one of them.
            admit.request_id = request.request_id = f"{caller.request_id}/{started.asked}"
            granted = await self._admission.admit(
                admit, deadline=deadline, traceparent=caller.traceparent, may_be_local=True
            )
            request.grant.CopyFrom(granted.grant)
            failed = False
            try:
                return await self._ask(granted, request, deadline)
            except WeirError as error:
                failed = error.reason is Reason.WORKER_LOST
                if error.reason not in _PASSED_ON:
                    raise
                admit.exclude_workers.append(granted.worker)
            finally:
                # Its length says nothing of what generations come to.
                self._admission.release(admit.request_id, pool=admit.pool, failed=failed, cut_short=True)

    async def _ask(
        self, granted: admission_pb2.Granted, request: worker_pb2.EmbedRequest, deadline: Deadline
    ) -> worker_pb2.EmbedResponse:
        stub = worker_pb2_grpc.WorkerServiceStub(self._workers.channel(granted.worker, granted.address))
        try:
            return await stub.Embed(request, timeout=deadline.timeout(self._clock))
        except grpc.aio.AioRpcError as error:
            told = from_rpc_error(error)
            if told.reason is Reason.DEADLINE_EXCEEDED:
                told = WeirError(told.reason, "the deadline passed while it ran", limit=RUNNING)
            raise told from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not our caller: the worker's channel was closed under the call.
            raise WeirError(Reason.WORKER_LOST, "the worker was lost", retry_after=self._soon(1.0)) from error

    def _soon(self, seconds: float) -> float:
        return jittered(seconds, self._chance)

    def _record(self, started: _Started, spec: Spec, caller: Caller, result: Embedded) -> None:
        total = self._clock.monotonic() - started.arrived
        accepted = Accepted(
            request_id=caller.request_id,
            trace_id=caller.traceparent[3:35],
            model_version=result.model_version,
            arm=started.arm.arm if started.arm is not None else "",
            prompt_tokens=result.tokens,
            simulated=result.simulated,
            zone="",
            created=int(self._clock.time()),
        )
        end = End(finish=Finish.STOP, usage=Usage(result.tokens), breakdown=Breakdown(total=total))
        self._audit.write(
            records.completed(
                now=self._clock.time(),
                source=f"{self._settings.service}/{self._settings.instance}",
                identity=caller.identity,
                spec=spec,
                model=self._catalog.told(spec.model),
                accepted=accepted,
                end=end,
                worker="",
                training=False,
                policies=started.policies,
            )
        )
        records.observe("embed", accepted, end)
        self._outcomes.ended(
            route="embed",
            tier=started.route.tier if started.route is not None else "",
            end=end,
            error=None,
            given=started.given,
            first=0.0,
            longest=0,
            model_version=result.model_version,
            model=spec.model,
            arm=started.arm,
            begun=started.begun,
        )


def parts_of(inputs: Sequence[list[int]], most: int) -> Iterator[list[list[int]]]:
    """The inputs in their order, in parts of at most `most` tokens: a grant is for what a worker can hold at once, and
    between two of them others have their turn. An input of its own may have more."""
    part: list[list[int]] = []
    tokens = 0
    for each in inputs:
        if part and tokens + len(each) > most:
            yield part
            part, tokens = [], 0
        part.append(each)
        tokens += len(each)
    yield part
