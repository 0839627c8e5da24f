"""`inference.GRPCInferenceService`: decode → pipeline → encode, for gRPC and for whoever speaks REST."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import grpc
from inference import open_inference_pb2 as pb
from inference import open_inference_pb2_grpc
from weir.registry.v1 import registry_pb2

from libs.callers import Caller, Identifier
from libs.catalog import Catalog
from libs.clock import Clock
from libs.deadlines import to_seconds
from libs.errors import Reason, WeirError
from libs.idempotency import KeyedCalls, replayed
from libs.routing import Route
from libs.telemetry.tracing import SERVER, Span, span
from services.predictor import describe
from services.predictor.addressing import Routed, Routes, full_name, rows_of, version_of
from services.predictor.call import Call, Rank
from services.predictor.forward import Peers
from services.predictor.keyed import Answered, digest
from services.predictor.parameters import asked
from services.predictor.serve import Predictions

SERVICE = "inference.GRPCInferenceService"
SCOPE = "inference"
_WAY_BACK, _WAY_BACK_SHARE = 0.02, 0.1
"""Seconds of a caller's time, and the share of a short one, that are kept for the way back."""
_NEVER = (
    *("ModelStreamInfer", "RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings"),
    *("SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"),
    *("CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"),
)
"""Methods of Triton's that are refused by name."""
_PAID = registry_pb2.PLAN_PAID
_FIRST = 1.0
"""Seconds that a stream which is refused anyway may take for its first request."""


class InferenceServicer(open_inference_pb2_grpc.GRPCInferenceServiceServicer):
    """The Open Inference Protocol v2, with Triton's extensions as far as they make sense here."""

    def __init__(
        self,
        predictions: Predictions,
        peers: Peers,
        identifier: Identifier,
        catalog: Catalog,
        *,
        states: Callable[[], Sequence[registry_pb2.ModelState]],
        ready: Callable[[], bool],
        default_deadline: Mapping[str, float],
        keyed: KeyedCalls[Answered] | None,
        clock: Clock,
    ) -> None:
        """:param states: how far the versions are that are wanted here.
        :param default_deadline: seconds for calls without one, by profile.
        :param keyed: what idempotency keys stand for; None: they are ignored."""
        self._predictions = predictions
        self._peers = peers
        self._identifier = identifier
        self._catalog = catalog
        self._states = states
        self._ready = ready
        self._default_deadline = default_deadline
        self._keyed = keyed
        self._clock = clock
        self._routes = Routes()

    # ---- the server ------------------------------------------------------------------------------------------------

    async def ServerLive(  # noqa: N802 - the names on the wire
        self, request: pb.ServerLiveRequest, context: grpc.aio.ServicerContext
    ) -> pb.ServerLiveResponse:
        """It answers."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(  # noqa: N802
        self, request: pb.ServerReadyRequest, context: grpc.aio.ServicerContext
    ) -> pb.ServerReadyResponse:
        """It has loaded something, or nothing is wanted of it."""
        return pb.ServerReadyResponse(ready=self._ready())

    async def ServerMetadata(  # noqa: N802
        self, request: pb.ServerMetadataRequest, context: grpc.aio.ServicerContext
    ) -> pb.ServerMetadataResponse:
        """Who it is."""
        return describe.server()

    # ---- models ------------------------------------------------------------------------------------------------------

    async def ModelReady(  # noqa: N802
        self, request: pb.ModelReadyRequest, context: grpc.aio.ServicerContext
    ) -> pb.ModelReadyResponse:
        """The version that the caller would get is loaded here, or where it would be handed on to."""
        _, version, _ = self._find(request.name, request.version, context)
        return pb.ModelReadyResponse(ready=self._predictions.has(version) or self._peers.have(version))

    async def ModelMetadata(  # noqa: N802
        self, request: pb.ModelMetadataRequest, context: grpc.aio.ServicerContext
    ) -> pb.ModelMetadataResponse:
        """What the version that the caller would get takes and gives."""
        _, version, spec = self._find(request.name, request.version, context)
        return describe.metadata(request.name, version, spec)

    async def ModelConfig(  # noqa: N802
        self, request: pb.ModelConfigRequest, context: grpc.aio.ServicerContext
    ) -> pb.ModelConfigResponse:
        """The same, as Triton tells it."""
        _, version, spec = self._find(request.name, request.version, context)
        return describe.config(request.name, version, spec)

    async def ModelStatistics(  # noqa: N802
        self, request: pb.ModelStatisticsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ModelStatisticsResponse:
        """What became of requests in this process; without a name, of everything that the caller may use."""
        if request.name:
            _, version, _ = self._find(request.name, request.version, context)
            return describe.statistics([(request.name, version)], self._predictions.statistics)
        caller = self._identifier.identify(context, scope=SCOPE)
        listed = dict.fromkeys(version for _, version in self._listed(caller))
        named = [(version.partition("@")[0], version) for version in listed]
        return describe.statistics(named, self._predictions.statistics)

    async def RepositoryIndex(  # noqa: N802
        self, request: pb.RepositoryIndexRequest, context: grpc.aio.ServicerContext
    ) -> pb.RepositoryIndexResponse:
        """What the caller may ask for, and how far it is here."""
        caller = self._identifier.identify(context, scope=SCOPE)
        if request.repository_name:
            raise WeirError(Reason.NOT_FOUND, "there is one repository, without a name", limit="repository_name")
        return describe.index(self._listed(caller), self._states(), only_ready=request.ready)

    # ---- predictions -------------------------------------------------------------------------------------------------

    async def ModelInfer(  # noqa: N802
        self, request: pb.ModelInferRequest, context: grpc.aio.ServicerContext
    ) -> pb.ModelInferResponse:
        """Predict."""
        arrived = self._clock.monotonic()
        caller = self._identifier.identify(context, scope=SCOPE)
        make, again = partial(self._infer, request, caller, arrived), False
        try:
            if (key := caller.idempotency_key) and self._keyed is not None:
                answered, again = await self._keyed.answer(caller.identity.tenant, key, digest(request), make)
            else:
                answered = await make()
        except WeirError as error:
            if error.reason is Reason.NO_WORKERS:
                context.set_trailing_metadata(describe.NOBODY_ELSE)
            raise
        if again:  # it has to be one that may be asked for, now
            self._find(request.model_name, request.model_version, context)
        context.set_trailing_metadata((*answered.told, *(replayed(answered.request_id) if again else ())))
        return answered.response

    async def _infer(self, request: pb.ModelInferRequest, caller: Caller, arrived: float) -> Answered:
        try:
            call = self._call(request, caller, arrived)
        except WeirError as error:
            self._predictions.refused(self._unplaced(request, caller, arrived), error)
            raise
        if not self._predictions.has(call.version):
            regions = frozenset(self._catalog.tenant(call.tenant).allowed_regions)
            handing = partial(self._peers.hand, call, caller, regions)
            if (handed := await self._predictions.elsewhere(call, handing)) is not None:
                return Answered(handed.response, tuple(handed.told), call.request_id)
        answer = await self._predictions.serve(call)
        describe.tell(answer, call)
        return Answered(answer.response, describe.trailers(answer, call), call.request_id)

    def _call(self, request: pb.ModelInferRequest, caller: Caller, arrived: float) -> Call:
        catalog, identity, told = self._catalog, caller.identity, caller.told
        wishes = asked(request)
        model = full_name(request.model_name, request.model_version)
        route, spec = self._routes.of(
            catalog.table(),
            identity.tenant,
            model,
            _routed(told),
            user=caller.user,
            session=caller.session,
            request_id=caller.request_id,
        )
        tenant = catalog.tenant(identity.tenant)
        rank = Rank.BATCH if wishes.lowered else _rank(tenant)
        given, back = self._time(caller.remaining, wishes.timeout, tenant, spec.profile)
        return Call(
            request=request,
            tenant=identity.tenant,
            key_id=identity.key_id,
            request_counted=identity.request_counted,
            model=model,
            user=caller.user,
            session=caller.session,
            route=route,
            request_id=caller.request_id,
            client_request_id=caller.client_request_id,
            rows=rows_of(request, spec),
            arrived=arrived,
            edge=caller.edge(self._clock.time()),
            deadline=arrived + given - back,
            given=given,
            rank=rank,
            degradable=wishes.degradable,
            span=self._span(model, caller),
        )

    def _unplaced(self, request: pb.ModelInferRequest, caller: Caller, arrived: float) -> Call:
        """A call of which it is not known what version is to answer it, for those who keep books."""
        identity, model = caller.identity, request.model_name
        return Call(
            request=request,
            tenant=identity.tenant,
            key_id=identity.key_id,
            request_counted=identity.request_counted,
            model=model,
            user=caller.user,
            session=caller.session,
            route=_NOWHERE,
            request_id=caller.request_id,
            client_request_id=caller.client_request_id,
            rows=1,
            arrived=arrived,
            deadline=arrived,
            given=0.0,
            rank=_rank(self._catalog.tenant(identity.tenant)),
            span=self._span(model, caller),
        )

    def _span(self, model: str, caller: Caller) -> Span:
        return span(f"predict {self._catalog.told(model)}"[:120], caller.traceparent, kind=SERVER)

    def _time(
        self, remaining: float | None, timeout: float, tenant: registry_pb2.Tenant, profile: str
    ) -> tuple[float, float]:
        """Seconds that the call has, and those of them that are for the way back."""
        default = self._default_deadline.get(profile) or self._default_deadline["classical"]
        given = min(default if remaining is None else remaining, timeout)
        if tenant.HasField("max_deadline"):
            given = min(given, to_seconds(tenant.max_deadline))
        if given <= 0:
            raise WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed before the call arrived")
        return given, 0.0 if remaining is None else min(_WAY_BACK, _WAY_BACK_SHARE * given)

    def _find(
        self, name: str, version: str, context: grpc.aio.ServicerContext
    ) -> tuple[Caller, str, registry_pb2.PredictionSpec]:
        """The version that the caller gets by this name."""
        caller, model = self._identifier.identify(context, scope=SCOPE), full_name(name, version)
        asked_for = self._catalog.question(caller.identity.tenant, model, user=caller.user, session=caller.session)
        found = self._catalog.resolve(asked_for).model_version
        return caller, found, version_of(self._catalog.table(), found, model).prediction

    def _listed(self, caller: Caller) -> list[tuple[str, str]]:
        """Names that the caller may ask for, and the version that each leads to."""
        versions = self._catalog.snapshot.model_versions
        return [
            (each.id, each.model_version)
            for each in self._catalog.models(caller.identity.tenant)
            if versions[each.model_version].HasField("prediction")
        ]


_UNROUTED = Routed()
_NOWHERE = Route("", "", "", "", (), 0)


def _rank(tenant: registry_pb2.Tenant) -> Rank:
    return Rank.PAID if tenant.plan == _PAID else Rank.FREE


def _routed(told: Mapping[str, str]) -> Routed:
    model, version = told.get("x-weir-model", ""), told.get("x-weir-model-version", "")
    if not model and not version:
        return _UNROUTED
    return Routed(model, version, told.get("x-weir-arm", ""), told.get("x-weir-rollout", ""))


def add(servicer: InferenceServicer, server: grpc.aio.Server) -> list[str]:
    """Have the server answer by the servicer, and refuse by name what Triton offers beside it."""
    open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)

    def refusal(method: str) -> grpc.RpcMethodHandler:
        def refuse() -> NoReturn:
            raise WeirError(Reason.UNIMPLEMENTED, f"{method} is not supported", limit=method)

        async def unary(request: bytes, context: grpc.aio.ServicerContext) -> Any:
            refuse()

        async def stream(requests: Any, context: grpc.aio.ServicerContext) -> None:
            # Who is refused while it writes its first request hears that it could not write.
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST):
                    await anext(aiter(requests), None)
            refuse()

        if method == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {method: refusal(method) for method in _NEVER}),)
    )
    return [SERVICE]
