"""A1 in the development mesh, which has what production has: rights in etcd, given before anybody is let at it."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import grpc
import pytest
from aetcd import rpc

from libs.authority.identity import dns_name
from libs.config import TlsFiles
from libs.errors import WeirError
from libs.registry import EtcdStore, cache, keys
from libs.registry.lingering import LINGER
from libs.rpc import make_channel
from services.cli import edge
from tests.support.mesh import Mesh, eventually


@pytest.fixture
def mesh(simulated: Mesh) -> Mesh:
    return simulated


def files(mesh: Mesh, name: str) -> TlsFiles:
    pki = mesh.state / "pki"
    return TlsFiles(ca=str(pki / "ca.pem"), cert=str(pki / f"{name}.pem"), key=str(pki / f"{name}.key"))


def address(mesh: Mesh, name: str) -> str:
    return str(mesh.file()["services"][name]["address"])


def refusal(mesh: Mesh, name: str, server: str) -> grpc.StatusCode | None:
    """How somebody is refused the nested transaction that etcd itself lets pass; None: it is not."""

    async def ask() -> grpc.StatusCode | None:
        inner = rpc.TxnRequest(success=[rpc.RequestOp(request_range=rpc.RangeRequest(key=b"/", range_end=b"0"))])
        outer = rpc.TxnRequest(success=[rpc.RequestOp(request_txn=inner)])
        channel = make_channel(address(mesh, server), tls=files(mesh, name), server_name=dns_name("etcd"))
        async with channel:
            try:
                await rpc.KVStub(channel).Txn(outer, timeout=5)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return None

    return asyncio.run(ask())


@pytest.mark.parametrize("name", ["demo-client", "envoy", "worker-a", "safety", "gateway"])
def test_a1_nobody_reads_etcd_who_has_no_need(mesh: Mesh, name: str) -> None:
    assert refusal(mesh, name, "etcd") is grpc.StatusCode.UNAVAILABLE
    assert refusal(mesh, name, "door") is grpc.StatusCode.PERMISSION_DENIED


def test_a1_key_hashes_are_in_no_cache_but_two(mesh: Mesh) -> None:
    found = {path.parent.name: path for path in (mesh.state / "data").glob("*/registry.cache")}
    assert {"controlplane", "rollout", "gateway", "worker-a", "registry", "edge-auth"} <= set(found)
    holding = set()
    for name, path in found.items():
        assert path.stat().st_mode & 0o777 == 0o600, name
        listing = cache.load(path)
        assert listing is not None
        if any(kv.key.startswith(keys.SECRETS) for kv in listing.kvs):
            holding.add(name)
    assert holding == {"registry", "edge-auth"}


def test_a1_services_and_etcd_restart_with_rights_in_force(mesh: Mesh) -> None:
    for name in ("worker-a", "door", "etcd"):
        old = int(mesh.process(name)["pid"])
        mesh.weir("kill", name)
        mesh.wait_back(name, old)
    assert refusal(mesh, "demo-client", "etcd") is grpc.StatusCode.UNAVAILABLE
    mesh.weir("set", "tenant", "acme", "display_name=Acme", "--reason", "etcd is back")

    def registered() -> bool:
        found = mesh.weir_json("get", "endpoints")["resources"]
        return any(
            each["metadata"]["name"] == "worker/worker-a" and not each["status"].get("leaving") for each in found
        )

    eventually(registered, what="worker-a's endpoint")


def test_requests_go_on_while_the_only_door_is_away_for_longer_than_a_lease(mesh: Mesh) -> None:
    body = {"model": "weir-fast", "messages": [{"role": "user", "content": "Where is the weir?"}], "max_tokens": 4}

    def asked() -> None:
        key, ca = mesh.env["WEIR_KEY_ACME"], mesh.env["WEIR_CA"]
        edge.chat(mesh.env["WEIR_EDGE_TLS_URL"], ca=ca, key=key, body=body, timeout=20.0, show=lambda _: None)

    async def registered(service: str) -> bool:
        store = EtcdStore([address(mesh, "etcd")], tls=mesh.etcd_root())
        try:
            return bool((await store.get_prefix(keys.key("endpoints", f"{service}/"))).kvs)
        finally:
            await store.close()

    asked()
    mesh.weir("kill", "door", "--signal", "STOP")
    try:
        for service in ("gateway", "edge-auth", "ratelimit"):
            eventually(
                lambda service=service: not asyncio.run(registered(service)), what=f"the end of {service}'s lease"
            )
        silent_since = time.monotonic()
        while time.monotonic() < silent_since + LINGER + 1:
            asked()
    finally:
        mesh.weir("kill", "door", "--signal", "CONT")
    eventually(lambda: asyncio.run(registered("gateway")), what="the gateway's endpoint")
    asked()


def test_a1_an_etcd_without_its_data_gets_its_users_again(mesh: Mesh) -> None:
    old = int(mesh.process("etcd")["pid"])
    shutil.rmtree(Path(mesh.state / "data" / "etcd"))
    mesh.weir("kill", "etcd")
    eventually(lambda: int(mesh.process("etcd")["pid"] or old) != old, what="a new etcd")
    assert not mesh.process("etcd")["ready"]
    assert mesh.up().returncode == 0
    mesh.wait_back("etcd", old)

    async def read(name: str) -> bool:
        store = EtcdStore([address(mesh, "etcd")], tls=files(mesh, name))
        try:
            await store.get(keys.FENCE)
        except WeirError:
            return False
        finally:
            await store.close()
        return True

    assert asyncio.run(read("controlplane"))
    assert not asyncio.run(read("etcd"))
