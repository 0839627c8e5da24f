"""A bare ADS client, for what a real one never does, and `xds:///` channels of this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc
from google.rpc import status_pb2

from libs import xds_bootstrap
from libs.config import TlsFiles
from libs.rpc import make_channel


class AdsClient:
    """One stream, driven message by message."""

    def __init__(self, channel: grpc.aio.Channel, *, cluster: str = "mesh", zone: str = "", node_id: str = "t") -> None:
        self._call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel).StreamAggregatedResources()
        self._node = base_pb2.Node(id=node_id, cluster=cluster, locality=base_pb2.Locality(zone=zone))

    async def ask(self, type_url: str, names: Sequence[str] = (), *, nonce: str = "", error: str = "") -> None:
        """Sends one request; `nonce` and `error` make it an answer."""
        request = discovery_pb2.DiscoveryRequest(
            node=self._node, type_url=type_url, resource_names=names, response_nonce=nonce
        )
        if error:
            request.error_detail.CopyFrom(status_pb2.Status(code=3, message=error))
        await self._call.write(request)

    async def read(self) -> discovery_pb2.DiscoveryResponse:
        """The next response."""
        response = await self._call.read()
        if response is grpc.aio.EOF:
            raise EOFError(f"the stream ended: {await self._call.code()} {await self._call.details()}")
        return response

    async def fetch(self, type_url: str, names: Sequence[str] = ()) -> discovery_pb2.DiscoveryResponse:
        """Subscribes, reads and accepts."""
        await self.ask(type_url, names)
        response = await self.read()
        await self.ask(type_url, names, nonce=response.nonce)
        return response

    async def end(self) -> grpc.StatusCode:
        """Closes this side; the status that the server ended with."""
        await self._call.done_writing()
        return await self._call.code()


async def client_status(
    address: str, *, tls: TlsFiles | None = None
) -> tuple[csds_pb2.ClientStatusResponse, dict[str, str]]:
    """The control plane's status and its trailing metadata."""
    async with make_channel(address, tls=tls) as channel:
        call = csds_pb2_grpc.ClientStatusDiscoveryServiceStub(channel).FetchClientStatus(
            csds_pb2.ClientStatusRequest(), timeout=5
        )
        response = await call
        return response, {key: str(value) for key, value in await call.trailing_metadata()}


@contextlib.contextmanager
def grpc_bootstrap(*, xds: str, tls: TlsFiles | None, zone: str, node_id: str = "client-0") -> Iterator[None]:
    """`xds:///` channels that this process makes in the block use this control plane."""
    name = "GRPC_XDS_BOOTSTRAP_CONFIG"
    before = os.environ.get(name)
    os.environ[name] = xds_bootstrap.render(node_id=node_id, zone=zone, xds=(xds,), tls=tls)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.asynccontextmanager
async def xds_channel(
    service: str, *, xds: str, tls: TlsFiles | None, zone: str = "zone-a"
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a service of the mesh through this control plane."""
    with grpc_bootstrap(xds=xds, tls=tls, zone=zone):
        async with make_channel(f"xds:///{service}.weir.internal", tls=tls) as channel:
            yield channel
