"""Real clients of the control plane: Envoy and gRPC's own xDS client, both over mTLS."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import httpx2
import pytest
from prometheus_client import REGISTRY
from weir.registry.v1 import registry_pb2

from libs.config import TlsFiles
from libs.registry import MemoryStore, Put, Store, keys
from libs.rpc.server import bind
from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.names import LISTENER
from tests.support.ads import client_status, xds_channel
from tests.support.certificates import tls_of
from tests.support.edge import EnvoyProcess, control_plane, drop_endpoint, edge_config, put_endpoint
from tests.support.etcd import free_ports
from tests.support.upstreams import Upstreams

METHOD = "/test.Who/Ask"


@asynccontextmanager
async def named_servers(store: Store, tls: TlsFiles, service: str, zones: dict[str, str]) -> AsyncIterator[None]:
    """Servers that answer with their name, registered in their zones."""
    servers = []
    for name, zone in zones.items():

        async def ask(request: bytes, context: grpc.aio.ServicerContext, name: str = name) -> bytes:
            return name.encode()

        server = grpc.aio.server()
        handlers = {"Ask": grpc.unary_unary_rpc_method_handler(ask)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Who", handlers),))
        port = bind(server, "127.0.0.1:0", tls=tls)
        await server.start()
        servers.append(server)
        await put_endpoint(store, service, name, port, zone)
    try:
        yield
    finally:
        for server in servers:
            await server.stop(None)


async def ask(channel: grpc.aio.Channel, **metadata: str) -> str:
    """Who answers."""
    pairs = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
    call = channel.unary_unary(METHOD)(b"", metadata=pairs, timeout=10, wait_for_ready=True)
    return (await call).decode()


async def until(channel: grpc.aio.Channel, wanted: str) -> None:
    """Asks until the wanted server answers; the test's own timeout bounds it."""
    while await ask(channel) != wanted:
        pass


async def test_a_channel_prefers_its_zone_and_follows_changes(tmp_path: Path) -> None:
    store = MemoryStore()
    tls = tls_of(tmp_path, "router")
    zones = {"router-a": "zone-a", "router-b": "zone-b"}
    async with (
        # Before the control plane, whose first snapshot then has them all.
        named_servers(store, tls, "router", zones),
        control_plane(store=store, tls=tls_of(tmp_path, "controlplane")) as plane,
        xds_channel("router", xds=plane.address, tls=tls_of(tmp_path, "gateway"), zone="zone-b") as channel,
    ):
        assert {await ask(channel) for _ in range(6)} == {"router-b"}
        await drop_endpoint(store, "router", "router-b")
        await until(channel, "router-a")


async def test_f1_one_registration_by_name_takes_no_service_down(tmp_path: Path) -> None:
    """Envoy, and gRPC likewise, would refuse the assignment with the good endpoints in it."""
    store = MemoryStore()
    named = registry_pb2.Endpoint(service="router", instance="router-b", address="router-b:7700", zone="zone-a")
    async with (
        named_servers(store, tls_of(tmp_path, "router"), "router", {"router-a": "zone-a"}),
        control_plane(store=store, tls=tls_of(tmp_path, "controlplane")) as plane,
        xds_channel("router", xds=plane.address, tls=tls_of(tmp_path, "gateway")) as channel,
    ):
        assert await ask(channel) == "router-a"
        await store.txn(puts=[Put(keys.key_of(named), keys.encode(named))])
        async with named_servers(store, tls_of(tmp_path, "router"), "router", {"router-c": "zone-a"}):
            await drop_endpoint(store, "router", "router-a")
            await until(channel, "router-c")
        assert REGISTRY.get_sample_value("weir_controlplane_bad_endpoints") == 1


async def test_a_pool_has_one_owner_whatever_the_zone(tmp_path: Path) -> None:
    store = MemoryStore()
    zones = {"admission-a": "zone-a", "admission-b": "zone-b", "admission-c": "zone-c"}
    owners: list[list[str]] = []
    async with (
        named_servers(store, tls_of(tmp_path, "admission"), "admission", zones),
        control_plane(store=store, tls=tls_of(tmp_path, "controlplane")) as plane,
    ):
        for zone in ("zone-a", "zone-b"):
            tls = tls_of(tmp_path, "gateway")
            async with xds_channel("admission", xds=plane.address, tls=tls, zone=zone) as channel:
                owners.append([await ask(channel, x_weir_pool=f"pool-{n}") for n in range(12)])
    assert owners[0] == owners[1]
    assert len(set(owners[0])) > 1


async def test_an_unknown_peer_name_is_refused_by_the_channel(tmp_path: Path) -> None:
    """A server that shows another service's certificate is not spoken to."""
    store = MemoryStore()
    async with (
        named_servers(store, tls_of(tmp_path, "safety"), "router", {"router-0": "zone-a"}),
        control_plane(store=store, tls=tls_of(tmp_path, "controlplane")) as plane,
        xds_channel("router", xds=plane.address, tls=tls_of(tmp_path, "gateway")) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(METHOD)(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_envoys_refusal_is_surfaced(tmp_path: Path) -> None:
    before = REGISTRY.get_sample_value("weir_controlplane_nacks_total", {"type": "Listener"}) or 0.0
    store = MemoryStore()
    await put_endpoint(store, "gateway", "gateway-0", 1)
    async with control_plane(store=store, edge=EdgeConfig(http_port=70_000)) as plane:
        envoy = EnvoyProcess(tmp_path / "envoy", xds=plane.address, tls=None)
        try:
            await envoy.start(())
            await envoy.wait_counter("listener_manager.lds.update_rejected", lambda value: value == 1)
            async with asyncio.timeout(10):
                while not (found := await refused_listeners(plane.address)):
                    pass
        finally:
            await envoy.stop()
    (detail,) = found
    assert "edge-http" in detail
    assert "port" in detail.lower()
    assert REGISTRY.get_sample_value("weir_controlplane_nacks_total", {"type": "Listener"}) == before + 1


async def refused_listeners(address: str) -> list[str]:
    """What clients said about listeners."""
    response, _ = await client_status(address)
    return [
        entry.error_state.details
        for config in response.config
        for entry in config.generic_xds_configs
        if entry.type_url == LISTENER and entry.error_state.details
    ]


async def test_envoy_lives_through_a_restart_of_the_control_plane(tmp_path: Path) -> None:
    pki, store = tmp_path / "pki", MemoryStore()
    (port,) = free_ports(1)
    tls, config = tls_of(pki, "controlplane"), edge_config(pki)
    upstreams = Upstreams(store, pki)
    await upstreams.start()
    envoy = EnvoyProcess(tmp_path / "envoy", xds=f"127.0.0.1:{port}", tls=tls_of(pki, "envoy"))
    try:
        async with control_plane(store=store, tls=tls, port=port, state_dir=tmp_path / "state", edge=config):
            await envoy.start(("edge-http", "edge-https"))
            for service in upstreams.ports:
                await envoy.wait_counter(f"cluster.{service}.membership_total", lambda value: value == 1)
        url = f"http://127.0.0.1:{(await envoy.listeners())['edge-http']}/v1/chat/completions"
        async with httpx2.AsyncClient(headers={"authorization": "Bearer good"}, trust_env=False) as client:
            await envoy.wait_counter("control_plane.connected_state", lambda value: value == 0)
            assert (await client.post(url, json={})).status_code == 200
            # Changes made while it was away arrive with its return, and nothing else does.
            await put_endpoint(store, "gateway", "gateway-1", upstreams.ports["gateway"] + 1)
            restarted = control_plane(store=store, tls=tls, port=port, state_dir=tmp_path / "state", edge=config)
            async with restarted:
                await envoy.wait_counter("cluster.gateway.membership_total", lambda value: value == 2)
                assert (await client.post(url, json={})).status_code == 200
        changed = await envoy.counters("^(listener_manager.listener_modified|cluster_manager.cluster_modified)$")
        assert set(changed.values()) <= {0}
    finally:
        await envoy.stop()
        await upstreams.stop()
