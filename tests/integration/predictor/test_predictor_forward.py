"""A predictor that is asked for a version that another one has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import pytest_asyncio
from inference import open_inference_pb2 as oip
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, from_rpc_error
from libs.registry import MemoryStore
from tests.support.predictor import Rig, question, running, scores, until

pytestmark = pytest.mark.asyncio
ROWS = np.ones((2, 4), np.float32)


@pytest_asyncio.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Rig, Rig]]:
    """One that loads nothing, since it is of another pool, and one that has m@1."""
    store = MemoryStore()
    async with (
        running(tmp_path / "b", store=store, instance="predictor-b") as having,
        running(tmp_path / "a", store=store, instance="predictor-a", pool="other") as lacking,
    ):
        await having.put(pb.TrustPolicy(namespace="default", keys=[having.key.trusted()]))
        await having.pushed()
        await having.loaded()
        await having.put(endpoint(having))
        await until(lambda: lacking.predictor._peers.have("m@1"))
        yield lacking, having


def endpoint(rig: Rig, **more: str) -> pb.Endpoint:
    values = {"service": "predictor", "instance": "predictor-b", "address": rig.address, "model_versions": ["m@1"]}
    return pb.Endpoint(**values, **more)  # type: ignore[arg-type]


async def test_it_hands_on_once_and_tells_what_the_other_told(pair: tuple[Rig, Rig]) -> None:
    lacking, having = pair
    expected = scores(await having.infer(question(ROWS)))
    call = lacking.stub.ModelInfer(
        question(ROWS), metadata=(("x-weir-tenant", "acme"), ("x-weir-scopes", "inference")), timeout=5
    )
    answer = await call
    np.testing.assert_array_equal(scores(answer), expected)
    trailers = dict(await call.trailing_metadata())
    assert trailers["x-weir-model-version"] == "m@1"
    assert "compute" in trailers["server-timing"]
    # Whoever runs it counts it.
    count = [rig.predictor.statistics.of("m@1").success.count for rig in (lacking, having)]
    assert count == [0, 2]
    assert (await lacking.stub.ModelReady(oip.ModelReadyRequest(name="m"), metadata=call_headers(), timeout=5)).ready


def call_headers() -> tuple[tuple[str, str], ...]:
    return (("x-weir-tenant", "acme"), ("x-weir-plan", "paid"), ("x-weir-scopes", "inference"))


async def test_what_was_handed_on_already_goes_no_further(pair: tuple[Rig, Rig]) -> None:
    lacking, _ = pair
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await lacking.infer(question(ROWS), x_weir_forwarded="1")
    assert from_rpc_error(refused.value).reason is Reason.NO_WORKERS


async def test_a_refusal_of_the_other_is_the_callers(pair: tuple[Rig, Rig]) -> None:
    lacking, _ = pair
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await lacking.infer(question(np.ones((2, 3), np.float32)))
    assert from_rpc_error(refused.value).reason is Reason.INVALID_REQUEST


async def test_a_tenant_that_is_bound_to_regions_is_not_handed_out_of_them(pair: tuple[Rig, Rig]) -> None:
    lacking, having = pair
    peers = lacking.predictor._peers
    await having.put(endpoint(having, region="eu"))
    await until(lambda: any(each.region == "eu" for each in peers._having["m@1"]))
    assert peers._choose("m@1", frozenset({"us"})) is None
    assert peers._choose("m@1", frozenset({"eu", "us"})) is not None


async def test_one_that_is_gone_leaves_it_to_the_ladder(pair: tuple[Rig, Rig]) -> None:
    lacking, having = pair
    gone = endpoint(having)
    gone.address = "127.0.0.1:1"
    await having.put(gone)
    await until(lambda: lacking.predictor._peers._having["m@1"][0].address == gone.address)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await lacking.infer(question(ROWS))
    assert from_rpc_error(refused.value).reason is Reason.NO_WORKERS
