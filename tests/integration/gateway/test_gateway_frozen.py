"""A leaf service that stands still: its connections stay open, and nothing comes. Requests are served without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from weir.registry.v1 import registry_pb2

from libs.errors import Reason
from libs.mux import MuxClient
from tests.support.leaves import MODEL, Leaf, Rig, rig
from tests.support.native_stream import FLAGGED, Stream, ids, refusal, taken
from tests.support.tokenizer import write_byte_tokenizer

FOR_EVER = 1000.0


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
        "ratelimit": (mesh.quota, [gateway._quota._mux("flagged")]),
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
