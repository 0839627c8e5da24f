"""ADS and client status: decode → state machine → encode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

import grpc
from envoy.admin.v3 import config_dump_shared_pb2 as dump_pb2
from envoy.config.core.v3 import base_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc
from google.protobuf import timestamp_pb2

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.registry import RegistryView
from libs.registry.roles import require_role
from libs.rpc import peer_identity, require_own
from libs.telemetry import get_logger
from services.controlplane import metrics
from services.controlplane.policy.names import EDGE, MESH, ORDER
from services.controlplane.policy.subscription import Kind, Offer, Subscriptions, TypeState
from services.controlplane.publisher import Publisher

log = get_logger(__name__)
ADS_SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"
STATUS_SERVICE = "envoy.service.status.v3.ClientStatusDiscoveryService"
_ENVOY = "envoy"
OnAck = Callable[[str, str, str], None]
"""Node id, type URL, version."""
_SHORT = {kind: kind.rsplit(".", 1)[-1] for kind in ORDER}


@dataclass(slots=True)
class _Client:
    """One connected stream."""

    node: base_pb2.Node
    subscriptions: Subscriptions = field(default_factory=Subscriptions)
    sent_at: dict[str, float] = field(default_factory=dict)
    """Type → when the last response went out, monotonic seconds."""


class AdsServicer(ads_pb2_grpc.AggregatedDiscoveryServiceServicer, csds_pb2_grpc.ClientStatusDiscoveryServiceServicer):
    """Both RPCs of the control plane, over one table of connected clients."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        roles: RegistryView,
        clock: Clock,
        tls: bool,
        acknowledged: OnAck | None = None,
    ) -> None:
        """:param roles: knows who operates.
        :param tls: peers must prove who they are; False lets everybody in (tests).
        :param acknowledged: told of every acknowledgement, in the event loop.
        """
        self._publisher = publisher
        self._roles = roles
        self._clock = clock
        self._tls = tls
        self._acknowledged = acknowledged
        self._clients: dict[int, _Client] = {}
        self._next = 0

    async def StreamAggregatedResources(  # noqa: N802 - the name on the wire
        self, request_iterator: AsyncIterator[discovery_pb2.DiscoveryRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """One client, until it goes.

        :raises WeirError: PERMISSION_DENIED for a peer without an identity, or one that claims to be what it is not;
            INVALID_REQUEST for an unknown node cluster.
        """
        first = await anext(aiter(request_iterator), None)
        if first is None:
            return
        self._authorise(first.node, context)
        client = _Client(first.node)
        number, self._next = self._next, self._next + 1
        self._clients[number] = client
        metrics.STREAMS.labels(client.node.cluster).inc()
        wake = asyncio.Event()
        writer = asyncio.create_task(self._write(client, context, wake))
        try:
            with self._publisher.subscribed(wake):
                self._take(client, first)
                wake.set()
                async for request in request_iterator:
                    self._take(client, request)
                    wake.set()
                    if writer.done():
                        break
        finally:
            writer.cancel()
            await asyncio.wait([writer])
            del self._clients[number]
            metrics.STREAMS.labels(client.node.cluster).dec()
        if not writer.cancelled():
            writer.result()

    async def FetchClientStatus(  # noqa: N802 - the name on the wire
        self, request: csds_pb2.ClientStatusRequest, context: grpc.aio.ServicerContext
    ) -> csds_pb2.ClientStatusResponse:
        """What every connected client has; see README.md.

        :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED for whoever has no role.
        """
        require_role("controlplane.FetchClientStatus", context, self._roles.snapshot, tls=self._tls)
        current = self._publisher.current
        context.set_trailing_metadata(
            [("x-weir-snapshot-revision", str(current.revision))]
            + ([("x-weir-snapshot-refused", self._publisher.refused)] if self._publisher.refused else [])
        )
        response = csds_pb2.ClientStatusResponse()
        for client in self._clients.values():
            config = response.config.add(node=client.node)
            offers = current.offers_for(client.node.cluster, client.node.locality.zone) if current.revision else {}
            for kind, state in client.subscriptions.types.items():
                _describe(config, kind, state, offers.get(kind))
        return response

    async def StreamClientStatus(  # noqa: N802 - the name on the wire
        self, request_iterator: AsyncIterator[csds_pb2.ClientStatusRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """One answer per request, as `FetchClientStatus`."""
        async for request in request_iterator:
            await context.write(await self.FetchClientStatus(request, context))

    def _authorise(self, node: base_pb2.Node, context: grpc.aio.ServicerContext) -> None:
        if node.cluster not in (EDGE, MESH):
            raise WeirError(
                Reason.INVALID_REQUEST, 'the node\'s cluster must be "edge" or "mesh"', limit="node.cluster"
            )
        if not self._tls:
            return
        peer = peer_identity(context)
        if peer is None or (node.cluster == EDGE and peer.service != _ENVOY):
            who = peer.service if peer else "an unidentified peer"
            raise WeirError(Reason.PERMISSION_DENIED, f"{who} is no {node.cluster} client")
        if peer.instance:
            require_own(context, instance=node.id, zone=node.locality.zone)

    def _take(self, client: _Client, request: discovery_pb2.DiscoveryRequest) -> None:
        error = request.error_detail.message if request.HasField("error_detail") else None
        kind, version = client.subscriptions.on_request(
            request.type_url, request.resource_names, request.response_nonce, error, self._clock.time()
        )
        short = _SHORT.get(request.type_url, "other")
        if kind is Kind.NACK:
            metrics.NACKS.labels(short).inc()
            log.error("xds_nack", node=client.node.id, type=short, version=version, detail=(error or "")[:2000])
        elif kind is Kind.ACK:
            metrics.ACKS.labels(short).inc()
            if self._acknowledged is not None:
                self._acknowledged(client.node.id, request.type_url, version)
        if kind in (Kind.ACK, Kind.NACK):
            sent = client.sent_at.pop(request.type_url, None)
            if sent is not None:
                metrics.ACK_SECONDS.labels(client.node.cluster).observe(self._clock.monotonic() - sent)

    async def _write(self, client: _Client, context: grpc.aio.ServicerContext, wake: asyncio.Event) -> None:
        """Sends what is due whenever something happened. A slow reader holds only itself up, and then gets the newest
        state, not every one in between."""
        while True:
            await wake.wait()
            wake.clear()
            current = self._publisher.current
            if not current.revision:
                continue
            offers = current.offers_for(client.node.cluster, client.node.locality.zone)
            for response in client.subscriptions.due(offers, self._clock.time()):
                client.sent_at[response.type_url] = self._clock.monotonic()
                metrics.RESPONSES.labels(_SHORT[response.type_url]).inc()
                await context.write(
                    discovery_pb2.DiscoveryResponse(
                        version_info=response.version,
                        type_url=response.type_url,
                        nonce=response.nonce,
                        resources=response.resources,
                        control_plane=base_pb2.ControlPlane(identifier="weir"),
                    )
                )


def _describe(config: csds_pb2.ClientConfig, kind: str, state: TypeState, offer: Offer | None) -> None:
    resources: Mapping[str, object] = offer.resources if offer is not None else {}
    names = sorted(resources) if state.wildcard else sorted(state.names)
    changed = timestamp_pb2.Timestamp()
    changed.FromNanoseconds(int(state.changed_at * 1e9))
    for name in names:
        entry = config.generic_xds_configs.add(type_url=kind, name=name, last_updated=changed)
        if name not in resources:
            entry.client_status = dump_pb2.ClientResourceStatus.DOES_NOT_EXIST
            entry.config_status = csds_pb2.ConfigStatus.NOT_SENT
            continue
        entry.version_info = state.acked_version
        if state.nacked_version:
            entry.client_status = dump_pb2.ClientResourceStatus.NACKED
            entry.config_status = csds_pb2.ConfigStatus.ERROR
            entry.error_state.details = state.nack_detail
            entry.error_state.version_info = state.nacked_version
        elif state.acked_version and state.answered and state.sent.get(name) is resources[name]:
            entry.client_status = dump_pb2.ClientResourceStatus.ACKED
            entry.config_status = csds_pb2.ConfigStatus.SYNCED
        else:
            entry.client_status = dump_pb2.ClientResourceStatus.REQUESTED
            entry.config_status = csds_pb2.ConfigStatus.STALE if state.sent_version else csds_pb2.ConfigStatus.NOT_SENT
