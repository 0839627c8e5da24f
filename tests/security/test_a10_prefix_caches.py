"""A10, R-TEN-3: nobody learns from a prefix cache what another tenant has sent, mirrored copies included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from weir.admission.v1 import admission_pb2
from weir.registry.v1 import registry_pb2 as pb
from weir.router.v1 import router_pb2

from tests.support.leaves import MODEL, Rig, rig
from tests.support.native_stream import FLAGGED, HEADERS, Stream, taken
from tests.support.tokenizer import write_byte_tokenizer

PROMPT = list(b"the same words of two tenants, longer than a block of a prefix cache is: sixty-four tokens of it")


@pytest.fixture
async def mirrored(tmp_path: Path) -> AsyncIterator[Rig]:
    """A gateway all of whose requests are mirrored to version 2."""
    folder = tmp_path / "model"
    folder.mkdir()
    async with rig(write_byte_tokenizer(folder), tmp_path / "state") as mesh:
        for known in [mesh.gateway._catalog.snapshot.model_versions[MODEL]]:
            for version in "12":
                made = pb.ModelVersion()
                made.CopyFrom(known)
                made.version, made.context_length = version, 256
                await mesh.put(made)
        under = pb.Rollout(
            alias="tiny",
            id="r1",
            baseline=MODEL,
            arms=[pb.RolloutArm(name="canary", model_version="tiny@2")],
            shadow=pb.ShadowPlan(share=10_000),
            state=pb.RolloutState(phase=pb.ROLLOUT_PHASE_SHADOW),
        )
        await mesh.put(under)
        async with asyncio.timeout(10):
            while "tiny" not in mesh.gateway._catalog.snapshot.rollouts:  # noqa: ASYNC110 - a watch of the store
                await asyncio.sleep(0.005)
        resolve = mesh.router.handler

        def route(call: Any, context: Any) -> router_pb2.RouterReply:
            reply: router_pb2.RouterReply = resolve(call, context)
            if reply.HasField("route"):
                reply.route.arm, reply.route.rollout_id = "baseline", "r1"
                target = router_pb2.Mirror(model_version="tiny@2", arm="canary", pool="shadow-pool", tier="fast")
                reply.route.mirror.CopyFrom(target)
            return reply

        mesh.router.handler = route
        yield mesh


async def test_a10_copies_of_two_tenants_prompts_share_neither_salt_nor_names(mirrored: Rig) -> None:
    for headers in (HEADERS, FLAGGED):
        async with Stream(mirrored, headers, token_ids=PROMPT, max_tokens=4) as stream:
            await (await taken(mirrored.workers[0])).last([65])
            await stream.rest()
            await (await taken(mirrored.workers[0])).last([65])
    users = [each for each in mirrored.admitted if each.model_version == MODEL]
    copies = [each for each in mirrored.admitted if each.queue_class == admission_pb2.QUEUE_CLASS_SHADOW]
    assert len(users) == len(copies) == 2
    # What admission signs into a grant is what a worker salts its cache with.
    assert len({each.tenant for each in (*users, *copies)}) == 4
    assert all(each.prefix_hashes for each in (*users, *copies))
    assert len({tuple(each.prefix_hashes) for each in (*users, *copies)}) == 4
