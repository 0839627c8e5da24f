"""A call whose version is not loaded here goes on, once, to a predictor that has it.

Callers who name no model to the edge meet any predictor, and so do internal ones. Whoever runs a prediction charges and
records it; who hands it on does neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import grpc
from inference.open_inference_pb2 import ModelInferResponse
from inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from weir.registry.v1 import registry_pb2

from libs.authority.identity import dns_name
from libs.callers import Caller
from libs.clock import Clock
from libs.config import TlsFiles
from libs.errors import Reason, from_rpc_error
from libs.registry import RegistrySnapshot
from libs.rpc import make_channel
from services.predictor import metrics
from services.predictor.call import Call

FRONTS = frozenset({"envoy", "predictor"})
"""Services whose word is taken for who calls."""
FORWARDED = "x-weir-forwarded"
"""Another predictor handed the call on: it goes no further. Envoy lets no caller send it."""
_SERVICE = "predictor"
_TOLD = ("x-weir-", "server-timing")
_GRACE = 5.0
"""Seconds that calls have to end on connections to a predictor that left."""
_BACK = frozenset(
    # The last one by predictors of an earlier release.
    {Reason.DEPENDENCY_UNAVAILABLE, Reason.DRAINING, Reason.NO_WORKERS, Reason.REJECTED_NO_CAPACITY}
)
"""What a predictor says that is gone, goes or has unloaded the version: this one does what it can."""


class Handed(NamedTuple):
    """What another predictor answered."""

    response: ModelInferResponse
    told: list[tuple[str, str]]
    """Beside the response: ours alone."""


class Peers:
    """The other predictors."""

    def __init__(
        self, *, instance: str, zone: str, tls: TlsFiles | None, chance: Callable[[], float], clock: Clock
    ) -> None:
        """:param chance: in [0, 1)."""
        self._instance = instance
        self._zone = zone
        self._tls = tls
        self._chance = chance
        self._clock = clock
        self._having: Mapping[str, list[registry_pb2.Endpoint]] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def update(self, snapshot: RegistrySnapshot) -> None:
        """Follow who has what."""
        others = [each for each in snapshot.endpoints_of(_SERVICE) if each.instance != self._instance]
        having: dict[str, list[registry_pb2.Endpoint]] = {}
        for each in others:
            for version in each.model_versions:
                having.setdefault(version, []).append(each)
        self._having = having
        addresses = {each.address for each in others}
        for gone in self._channels.keys() - addresses:
            leaving = asyncio.ensure_future(self._channels.pop(gone).close(_GRACE))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    def have(self, version: str) -> bool:
        """Some of them has the version."""
        return version in self._having

    async def hand(self, call: Call, caller: Caller, regions: frozenset[str]) -> Handed | None:
        """The answer of a predictor that has the call's version; None where there is none that could.

        :param regions: those in which the tenant may be served; empty: all.
        :raises WeirError: what that predictor refused it with.
        """
        if caller.told.get(FORWARDED):
            return None
        endpoint = self._choose(call.version, regions)
        left = call.deadline - self._clock.monotonic()
        if endpoint is None or left <= 0:
            return None
        running = self._stub(endpoint).ModelInfer(call.request, timeout=left, metadata=tuple(_headers(call, caller)))
        try:
            response = await running
        except grpc.aio.AioRpcError as failure:
            error = from_rpc_error(failure)
            metrics.FORWARDED.labels(error.reason.name).inc()
            if error.reason in _BACK:
                return None
            raise error from None
        metrics.FORWARDED.labels("ok").inc()
        trailers = await running.trailing_metadata() or ()
        told = [(key, str(value)) for key, value in trailers if key.startswith(_TOLD)]
        return Handed(response, told)

    async def close(self) -> None:
        """End all connections."""
        for leaving in self._leaving:
            leaving.cancel()
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    def _choose(self, version: str, regions: frozenset[str]) -> registry_pb2.Endpoint | None:
        """Any of this zone, else any."""
        able = [each for each in self._having.get(version, ()) if not regions or each.region in regions]
        near = [each for each in able if each.zone == self._zone] or able
        return near[int(self._chance() * len(near))] if near else None

    def _stub(self, endpoint: registry_pb2.Endpoint) -> GRPCInferenceServiceStub:
        channel = self._channels.get(endpoint.address)
        if channel is None:
            name = dns_name(_SERVICE)
            channel = make_channel(endpoint.address, tls=self._tls, server_name=name if self._tls else None)
            self._channels[endpoint.address] = channel
        return GRPCInferenceServiceStub(channel)


def _headers(call: Call, caller: Caller) -> Iterator[tuple[str, str]]:
    """What the edge would say of it."""
    identity, route = caller.identity, call.route
    said = {
        "x-weir-tenant": identity.tenant,
        "x-weir-plan": identity.plan,
        "x-weir-scopes": " ".join(sorted(identity.scopes)),
        "x-weir-key-id": identity.key_id,
        "x-weir-request-counted": "1" if identity.request_counted else "",
        "x-request-id": caller.request_id,
        "x-client-request-id": caller.client_request_id,
        "x-weir-user": caller.user,
        "x-weir-session": caller.session,
        "x-weir-model": call.model,
        "x-weir-model-version": route.model_version,
        "x-weir-arm": route.arm,
        "x-weir-rollout": route.rollout_id,
        "x-request-start": caller.told.get("x-request-start", ""),
        "traceparent": call.traceparent,
        FORWARDED: "1",
    }
    return ((name, value) for name, value in said.items() if value)
