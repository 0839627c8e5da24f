"""What the edge remembers of callers who ask for predictions: who they are, and where they stand. And who answers when
a version has lost its predictors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import httpx2
import pytest
import pytest_asyncio
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, from_rpc_error
from tests.support.known import PATIENT, edge_lua
from tests.support.predictions import MODEL, PredictionEdge, prediction_edge, rollout

ONE, TWO = f"{MODEL}@1", f"{MODEL}@2"
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PredictionEdge]:
    """An edge that does not forget while a test runs."""
    with edge_lua(**PATIENT):
        async with prediction_edge(tmp_path_factory.mktemp("known")) as found:
            yield found


async def checks(edge: PredictionEdge) -> int:
    """How often edge-auth was asked."""
    return (await edge.envoy.counters(r"^cluster.edge-auth.upstream_rq_total$"))["cluster.edge-auth.upstream_rq_total"]


async def test_a_known_caller_is_placed_as_he_was_and_nobody_is_asked(edge: PredictionEdge) -> None:
    await edge.known(await edge.put(rollout(5000)))
    await edge.reaches(MODEL, "", ONE)
    users = [f"u{number}" for number in range(20)]
    first = await edge.versions(MODEL, users)
    assert set(first) == {ONE, TWO}
    before = await checks(edge)
    for _ in range(3):
        assert await edge.versions(MODEL, users) == first
    for found in edge.predictors.values():
        assert found.seen["x-weir-rollout"] == "r-edge"
        assert found.seen["x-weir-tenant"] == "acme"
        assert "x-weir-estimated-tokens" not in found.seen
    assert await checks(edge) == before
    # Another model, another session: another place.
    await edge.infer(TWO, users[0])
    await edge.infer(MODEL, users[0], x_weir_session="s")
    assert await checks(edge) == before + 2


async def test_over_http_it_is_the_same(edge: PredictionEdge) -> None:
    body = {"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": [1]}]}
    headers = {"authorization": f"Bearer {edge.tokens['acme']}", "x-weir-user": "u1"}
    url = f"http://127.0.0.1:{edge.port}"
    async with httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=20) as client:
        first = (await client.post(f"/v2/models/{MODEL}/infer", json=body)).json()
        before = await checks(edge)
        for _ in range(3):
            assert (await client.post(f"/v2/models/{MODEL}/infer", json=body)).json() == first
        assert await checks(edge) == before
        assert (await edge.infer(MODEL, "u1"))[1] == first["model_version"]


async def test_who_leaves_the_blast_radius_meets_no_arm_though_he_is_remembered(edge: PredictionEdge) -> None:
    await edge.known(await edge.put(rollout(10_000)))
    await edge.reaches(MODEL, "u", TWO, tenant="other")
    assert set(await edge.versions(MODEL, ["u"] * 5, tenant="other")) == {TWO}
    await edge.known(await edge.put(rollout(10_000, except_tenants=["other"])))
    await edge.reaches(MODEL, "u", ONE, tenant="other")
    assert set(await edge.versions(MODEL, ["u"] * 10, tenant="other")) == {ONE}
    assert set(await edge.versions(MODEL, ["u"] * 10)) == {TWO}


async def test_a_changed_weight_moves_who_must_without_asking_anybody(edge: PredictionEdge) -> None:
    await edge.known(await edge.put(rollout(1)))
    users = [f"w{number}" for number in range(40)]
    assert await edge.versions(MODEL, users) == [ONE] * 40
    before = await checks(edge)
    await edge.known(await edge.put(rollout(10_000)))
    await edge.reaches(MODEL, users[0], TWO)
    assert await edge.versions(MODEL, users) == [TWO] * 40
    assert await checks(edge) == before


async def test_a_model_that_is_not_granted_stays_hidden_from_a_known_caller(edge: PredictionEdge) -> None:
    secret = pb.ModelVersion(name="secret", version="1", pool="predict", tier="fast", namespace="lab")
    await edge.known(await edge.put(secret))
    for _ in range(2):
        name, version = await edge.infer("secret@1")
        assert version == ""
        assert "x-weir-model" not in edge.predictors[name.removeprefix("predictor-")].seen


async def test_a_version_that_lost_its_predictors_is_answered_by_the_others(edge: PredictionEdge) -> None:
    """Its endpoint is in the registry still: a process that was killed a moment ago."""
    await edge.put(pb.ModelVersion(name=MODEL, version="9", pool="predict", tier="fast"))
    async with edge.killed("9") as killed:
        assert await edge.infer(f"{MODEL}@9") == ("predictor-9", f"{MODEL}@9")
        await killed()
        answers = [await edge.infer(f"{MODEL}@9", f"u{number}") for number in range(20)]
    assert {name for name, _ in answers} == {"predictor-1", "predictor-2"}
    assert {version for _, version in answers} == {f"{MODEL}@9"}, "they are told what was asked for"


async def test_a_dead_predictor_that_is_tried_again_costs_nobody_his_answer(edge: PredictionEdge) -> None:
    """Who was left out comes back after 2 s; while he is dead still, that must be no second of refusals each time."""
    await edge.put(pb.ModelVersion(name=MODEL, version="6", pool="predict", tier="fast"))
    left_out = f"cluster.predictor/{MODEL}@6.outlier_detection.ejections_active"
    async with edge.killed("6") as killed:
        await killed()
        for _ in range(2):
            async with asyncio.timeout(60):
                await edge.infer(f"{MODEL}@6")
                await edge.envoy.wait_counter(left_out, bool)
                await edge.envoy.wait_counter(left_out, lambda count: not count)
            answers = [await edge.infer(f"{MODEL}@6", f"u{number}") for number in range(10)]
            assert {name for name, _ in answers} <= {"predictor-1", "predictor-2"}


async def test_whoever_says_that_nobody_has_a_version_is_believed(edge: PredictionEdge) -> None:
    """Another one would say the same, or is the dead one, of which Envoy has less to say."""
    lost = f"{MODEL}@7"
    await edge.put(pb.ModelVersion(name=MODEL, version="7", pool="predict", tier="fast"))
    async with edge.killed("7") as killed:
        await killed()
        for each in edge.predictors.values():
            each.lacks.add(lost)
        for number in range(20):
            before = [each.asked for each in edge.predictors.values()]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await edge.infer(lost, f"u{number}")
            error = from_rpc_error(refused.value)
            assert (error.reason, error.retry_after) == (Reason.NO_WORKERS, 3.0)
            assert sum(each.asked for each in edge.predictors.values()) == sum(before) + 1
            assert not [key for key, _ in refused.value.trailing_metadata() or () if key.startswith("x-envoy-")]


async def test_a_prediction_that_its_predictor_gave_back_is_answered_by_another(edge: PredictionEdge) -> None:
    """One that leaves says UNAVAILABLE."""
    over = rollout(0, phase=pb.ROLLOUT_PHASE_ABORTED)
    await edge.known(await edge.put(over, pb.ModelVersion(name=MODEL, version="8", pool="predict", tier="fast")))
    async with edge.predictor("8") as leaving:
        await edge.reaches(f"{MODEL}@8", "", f"{MODEL}@8")
        leaving.leaves = 1
        assert await edge.infer(f"{MODEL}@8") == ("predictor-8", f"{MODEL}@8")
        assert leaving.leaves == 0, "it was asked twice"
