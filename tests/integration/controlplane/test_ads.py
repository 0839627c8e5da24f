"""The ADS server over real gRPC: subscriptions, refusals, identity, restarts, outages of the store."""

import asyncio
from pathlib import Path

import grpc
import pytest
from envoy.admin.v3 import config_dump_shared_pb2 as dump_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.status.v3 import csds_pb2
from prometheus_client import REGISTRY
from weir.registry.v1 import registry_pb2

from libs.registry import MemoryStore, Put, keys
from libs.rpc import make_channel
from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.names import CLUSTER, ENDPOINTS, LISTENER, ROUTES
from tests.support.ads import AdsClient, client_status
from tests.support.certificates import tls_of
from tests.support.edge import Plane, control_plane, drop_endpoint, put_endpoint

STATUS = dump_pb2.ClientResourceStatus


def names_of(response: discovery_pb2.DiscoveryResponse) -> list[str]:
    """The endpoint sets in a response."""
    return [assignment(resource).cluster_name for resource in response.resources]


def assignment(resource: object) -> endpoint_pb2.ClusterLoadAssignment:
    """An endpoint set out of its `Any`."""
    found = endpoint_pb2.ClusterLoadAssignment()
    resource.Unpack(found)  # type: ignore[attr-defined]
    return found


async def entry_of(plane: Plane, type_url: str, name: str) -> csds_pb2.ClientConfig.GenericXdsConfig:
    """The status of one resource of the only client."""
    response, _ = await client_status(plane.address)
    (config,) = response.config
    (found,) = [entry for entry in config.generic_xds_configs if (entry.type_url, entry.name) == (type_url, name)]
    return found


@pytest.fixture
async def store() -> MemoryStore:
    """A registry with one gateway."""
    store = MemoryStore()
    await put_endpoint(store, "gateway", "gateway-0", 1001)
    return store


async def test_only_what_changed_is_sent(store: MemoryStore) -> None:
    async with control_plane(store=store) as plane, make_channel(plane.address, tls=None) as channel:
        client = AdsClient(channel)
        first = await client.fetch(ENDPOINTS, ["gateway", "router"])
        assert names_of(first) == ["gateway", "router"]
        assert not assignment(first.resources[1]).endpoints, "an empty set is served, not withheld"
        await client.fetch(CLUSTER, ["gateway"])
        # Sending the cluster makes its endpoints due once more, for clients that warm it up.
        again = await client.read()
        await client.ask(ENDPOINTS, ["gateway", "router"], nonce=again.nonce)
        await put_endpoint(store, "audit", "audit-0", 1002)
        revision = await put_endpoint(store, "router", "router-0", 1003)
        changed = await client.read()
        assert (changed.type_url, names_of(changed)) == (ENDPOINTS, ["router"])
        assert changed.version_info == str(revision)


async def test_underscores_and_new_services(store: MemoryStore) -> None:
    async with control_plane(store=store) as plane, make_channel(plane.address, tls=None) as channel:
        await put_endpoint(store, "edge_auth", "edge-auth-0", 1004)
        await put_endpoint(store, "brand-new", "brand-new-0", 1005)
        client = AdsClient(channel)
        response = await client.fetch(ENDPOINTS, ["edge-auth"])
        while not assignment(response.resources[0]).endpoints:
            response = await client.read()
        await client.ask(LISTENER, ["brand-new.weir.internal"])
        assert (await client.read()).type_url in (LISTENER, ENDPOINTS)


async def test_a_name_added_later_is_answered(store: MemoryStore) -> None:
    async with control_plane(store=store) as plane, make_channel(plane.address, tls=None) as channel:
        client = AdsClient(channel)
        first = await client.fetch(ENDPOINTS, ["gateway"])
        await client.ask(ENDPOINTS, ["gateway", "audit"], nonce=first.nonce)
        second = await client.read()
        assert names_of(second) == ["audit"]


async def test_a_refusal_is_surfaced_and_not_repeated(store: MemoryStore) -> None:
    def refusals() -> float:
        return REGISTRY.get_sample_value("weir_controlplane_nacks_total", {"type": "RouteConfiguration"}) or 0.0

    before = refusals()
    async with control_plane(store=store) as plane, make_channel(plane.address, tls=None) as channel:
        client = AdsClient(channel)
        name = "gateway.weir.internal"
        await client.ask(ROUTES, [name])
        routes = await client.read()
        await client.ask(ROUTES, [name], nonce=routes.nonce, error="this route is wrong")
        # The stream is in order, so once this is answered the refusal has been taken in.
        await client.fetch(ENDPOINTS, ["gateway"])
        entry = await entry_of(plane, ROUTES, name)
        assert (entry.client_status, entry.config_status) == (STATUS.NACKED, csds_pb2.ConfigStatus.ERROR)
        assert entry.error_state.details == "this route is wrong"
        assert entry.error_state.version_info == routes.version_info
        assert not entry.version_info
        assert refusals() == before + 1
        await put_endpoint(store, "gateway", "gateway-1", 1006)
        assert (await client.read()).type_url == ENDPOINTS


async def test_status_of_an_acknowledged_and_an_absent_resource(store: MemoryStore) -> None:
    async with control_plane(store=store) as plane, make_channel(plane.address, tls=None) as channel:
        client = AdsClient(channel, zone="zone-a", node_id="gateway-7")
        await client.fetch(CLUSTER, ["gateway", "nobody"])
        await client.fetch(ENDPOINTS, ["gateway"])
        response, trailers = await client_status(plane.address)
        (config,) = response.config
        assert (config.node.id, config.node.locality.zone) == ("gateway-7", "zone-a")
        assert trailers["x-weir-snapshot-revision"] == str(store.revision)
        entry = await entry_of(plane, CLUSTER, "gateway")
        assert (entry.client_status, entry.config_status) == (STATUS.ACKED, csds_pb2.ConfigStatus.SYNCED)
        assert entry.version_info
        assert (await entry_of(plane, CLUSTER, "nobody")).client_status == STATUS.DOES_NOT_EXIST
        await client.end()


async def test_an_inconsistent_state_is_refused_and_told(tmp_path: Path, store: MemoryStore) -> None:
    async with control_plane(store=store, edge=EdgeConfig(http_port=-1)) as plane:
        # The refusal of the first state is the only event there is to wait for.
        while not plane.control.publisher.refused:  # noqa: ASYNC110
            await asyncio.sleep(0)
        _, trailers = await client_status(plane.address)
        assert trailers["x-weir-snapshot-revision"] == "0"
        assert "port" in trailers["x-weir-snapshot-refused"]


@pytest.mark.parametrize(
    ("service", "cluster", "code"),
    [
        ("router", "mesh", grpc.StatusCode.OK),
        ("envoy", "edge", grpc.StatusCode.OK),
        ("router", "edge", grpc.StatusCode.PERMISSION_DENIED),
        ("edge", "mesh", grpc.StatusCode.PERMISSION_DENIED),
        ("envoy", "other", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_who_may_be_what(
    tmp_path: Path, store: MemoryStore, service: str, cluster: str, code: grpc.StatusCode
) -> None:
    plane_tls, own = tls_of(tmp_path, "controlplane"), tls_of(tmp_path, service)
    async with control_plane(store=store, tls=plane_tls) as plane, make_channel(plane.address, tls=own) as channel:
        client = AdsClient(channel, cluster=cluster)
        if code is grpc.StatusCode.OK:
            await client.fetch(CLUSTER)
            assert await client.end() is code
        elif service == "edge":
            # The public certificate is for servers only: the handshake itself fails.
            with pytest.raises((EOFError, grpc.aio.AioRpcError, asyncio.InvalidStateError)):
                await client.fetch(CLUSTER)
        else:
            await client.ask(CLUSTER)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.read()
            assert caught.value.code() is code


@pytest.mark.parametrize(("node_id", "zone"), [("router-1", "zone-a"), ("router-0", "zone-b"), ("router-0", "zone-a")])
async def test_an_instance_asks_for_itself(tmp_path: Path, store: MemoryStore, node_id: str, zone: str) -> None:
    own = tls_of(tmp_path, "router", "router-0", zone="zone-a")
    async with (
        control_plane(store=store, tls=tls_of(tmp_path, "controlplane")) as plane,
        make_channel(plane.address, tls=own, server_name="controlplane.weir.internal") as channel,
    ):
        client = AdsClient(channel, node_id=node_id, zone=zone)
        await client.ask(CLUSTER)
        if (node_id, zone) == ("router-0", "zone-a"):
            await client.read()
            return
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.read()
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_restart_keeps_the_versions(tmp_path: Path, store: MemoryStore) -> None:
    seen = []
    for _ in range(2):
        async with (
            control_plane(store=store, state_dir=tmp_path) as plane,
            make_channel(plane.address, tls=None) as channel,
        ):
            client = AdsClient(channel, cluster="edge")
            responses = [await client.fetch(CLUSTER), await client.fetch(LISTENER)]
            responses.append(await client.fetch(ENDPOINTS, ["gateway"]))
            seen.append([(r.type_url, r.version_info, [x.value for x in r.resources]) for r in responses])
        # Something that no client sees changes while the control plane is away.
        await store.txn(puts=[Put(keys.key("tenants", "acme"), keys.encode(registry_pb2.Tenant(id="acme")))])
    assert seen[0] == seen[1]


async def test_tenants_do_not_touch_clients(store: MemoryStore) -> None:
    async with control_plane(store=store) as plane, make_channel(plane.address, tls=None) as channel:
        client = AdsClient(channel)
        await client.fetch(ENDPOINTS, ["gateway"])
        await store.txn(puts=[Put(keys.key("tenants", "acme"), keys.encode(registry_pb2.Tenant(id="acme")))])
        revision = await drop_endpoint(store, "gateway", "gateway-0")
        response = await client.read()
        assert response.version_info == str(revision)
        assert not assignment(response.resources[0]).endpoints


async def test_starts_without_the_store_from_its_cache(tmp_path: Path, store: MemoryStore) -> None:
    async with control_plane(store=store, state_dir=tmp_path):
        cache = tmp_path / "registry.cache"
        async with asyncio.timeout(5):
            while not cache.exists():  # noqa: ASYNC110 - another component's file is the only sign there is
                await asyncio.sleep(0.01)
    away = MemoryStore()
    away.set_available(False)
    async with (
        control_plane(store=away, state_dir=tmp_path) as plane,
        make_channel(plane.address, tls=None) as channel,
    ):
        response = await AdsClient(channel).fetch(ENDPOINTS, ["gateway"])
        assert assignment(response.resources[0]).endpoints
