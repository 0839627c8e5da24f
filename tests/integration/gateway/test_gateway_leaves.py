"""A leaf service that stands still (its connections stay open, and nothing comes), or is not there when the gateway
starts: requests are served without it. And a gateway that leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.registry.v1 import registry_pb2

from libs.errors import Reason
from libs.mux import MuxClient
from tests.support.leaves import MODEL, Leaf, Rig, rig
from tests.support.native_stream import FLAGGED, Stream, ids, refusal, taken
from tests.support.tokenizer import write_byte_tokenizer

FOR_EVER = 1000.0
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[Rig]:
    """A gateway that waits for every decision for ever."""
    model = tmp_path / "model"
    model.mkdir()
    state = tmp_path / "state"
    async with rig(write_byte_tokenizer(model), state, decide_timeout=FOR_EVER, filter_grace=0.5) as running:
        worker = running.workers[0]
        address = f"127.0.0.1:{worker.port}"
        endpoint = registry_pb2.Endpoint(
            service="worker", instance=worker.name, address=address, zone="zone-a", model_versions=[MODEL]
        )
        await running.put(endpoint)  # whom it may send requests to while admission is away
        yield running


def frozen_of(mesh: Rig, name: str) -> tuple[Leaf, list[MuxClient]]:
    gateway = mesh.gateway
    router, safety, audit = gateway._links
    return {
        "router": (mesh.router, [router]),
        "safety": (mesh.safety, [safety]),
        "audit": (mesh.audit, [audit]),
        "ratelimit": (mesh.quota, [gateway._quota._streams.home("flagged")]),
        "admission": (mesh.admission, [gateway._admission.pool("pool")]),
    }[name]


async def lost(links: list[MuxClient]) -> None:
    """Until the gateway knows, and the outage has lasted for longer than a restart may."""
    async with asyncio.timeout(20):
        while not all(link.away > 0.5 for link in links):  # noqa: ASYNC110 - time has to pass
            await asyncio.sleep(0.01)


FLAGS = {
    "router": ["router_local"],
    "safety": ["safety_skipped"],
    "audit": [],
    "ratelimit": ["quota_local"],
    "admission": ["admission_local"],
}


@pytest.mark.parametrize("name", list(FLAGS))
async def test_e7_nobody_waits_for_a_leaf_that_stands_still(patient: Rig, name: str) -> None:
    async with Stream(patient, FLAGGED) as stream:  # every stream has been used
        await (await taken(patient.workers[0])).last(ids("a"))
        await stream.rest()
    leaf, links = frozen_of(patient, name)
    leaf.moves.clear()
    async with Stream(patient, FLAGGED) as first, asyncio.timeout(20):  # it finds out, and may wait for ever
        if name == "audit":
            await (await taken(patient.workers[0])).last(ids("b"))
            await first.rest()
        await lost(links)
        async with Stream(patient, FLAGGED) as second:
            running = await taken(patient.workers[0])
            await running.last(ids("c"))
            text, end = await second.rest()
    assert text == "c"
    assert sorted(end.degraded) == FLAGS[name]
    leaf.moves.set()
    for link in links:  # and it comes back by itself
        await link.wait_connected(20)


async def test_e7_who_must_be_checked_is_refused_at_once(patient: Rig) -> None:
    leaf, links = frozen_of(patient, "safety")
    leaf.moves.clear()
    async with Stream(patient), asyncio.timeout(20):
        await lost(links)
        async with Stream(patient) as second:
            error = await refusal(second)
    assert error.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert error.retry_after is not None
    leaf.moves.set()


async def test_who_must_be_checked_waits_until_a_check_that_stands_still_is_asked_for_elsewhere(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    async with (
        rig(write_byte_tokenizer(model), tmp_path / "state", decide_timeout=1.0, filter_grace=20.0) as mesh,
        asyncio.timeout(20),
    ):
        leaf, (link,) = frozen_of(mesh, "safety")
        leaf.moves.clear()
        async with Stream(mesh) as stream:
            await lost([link])
            leaf.moves.set()
            await (await taken(mesh.workers[0])).last(ids("a"))
            text, end = await stream.rest()
    assert (text, list(end.degraded)) == ("a", [])


# ---- away at the start ------------------------------------------------------------------------

AWAY = {"router": ["router_local"], "safety": ["safety_skipped"], "audit": [], "ratelimit": ["quota_local"]}


@pytest.mark.parametrize("name", list(AWAY))
async def test_e6_a_gateway_starts_without_a_leaf_and_takes_it_when_it_comes(tmp_path: Path, name: str) -> None:
    model = tmp_path / "model"
    model.mkdir()
    apart = rig(write_byte_tokenizer(model), tmp_path / "state", without=[name], leaf_patience=0.5, filter_grace=0.1)
    async with apart as mesh:
        async with Stream(mesh, FLAGGED) as stream:
            await (await taken(mesh.workers[0])).last(ids("a"))
            text, end = await stream.rest()
        assert (text, sorted(end.degraded)) == ("a", AWAY[name])
        leaf, links = frozen_of(mesh, name)
        await leaf.start()
        for link in links:
            await link.wait_connected(20)
        async with Stream(mesh, FLAGGED) as stream:
            await (await taken(mesh.workers[0])).last(ids("b"))
            text, end = await stream.rest()
        assert (text, list(end.degraded)) == ("b", [])


async def test_e6_a_gateway_that_leaves_serves_on_at_first(tmp_path: Path) -> None:
    """Who sends requests learns a moment later that its endpoint is gone."""
    model = tmp_path / "model"
    model.mkdir()
    leaving = rig(write_byte_tokenizer(model), tmp_path / "state", drain=20.0, lame_duck_seconds=2.0)
    mesh = await leaving.__aenter__()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        ending = asyncio.ensure_future(leaving.__aexit__(None, None, None))
        assert (await watch.read()).status == NOT_SERVING
        async with Stream(mesh, FLAGGED) as stream:  # sent here by somebody who does not know yet
            await (await taken(mesh.workers[0])).last(ids("a"))
            assert (await stream.rest())[0] == "a"
        async with asyncio.timeout(10):
            while not mesh.gateway._pipeline.parts.occupancy.draining:  # noqa: ASYNC110 - time has to pass
                await asyncio.sleep(0.01)
        watch.cancel()
    await ending
