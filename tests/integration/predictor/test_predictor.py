"""A predictor over gRPC: from a signed version in a blob store to an answer."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio
import xgboost as xgb
from google.rpc import error_details_pb2, status_pb2
from inference import open_inference_pb2 as oip
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, WeirError, from_rpc_error
from libs.registry import keys
from tests.support.predictor import EDGE, Rig, booster, question, running, scores, told, trees, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROWS = np.random.default_rng(7).normal(size=(5, 4)).astype(np.float32)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with running(tmp_path_factory.mktemp("predictor")) as rig:
        await rig.pushed()
        await rig.loaded()
        yield rig


def native(rows: np.ndarray, seed: int = 1) -> np.ndarray:
    model = xgb.Booster(model_file=bytearray(booster(seed=seed)))
    return np.asarray(model.inplace_predict(rows))


async def test_it_answers_as_the_library_does_and_says_what_it_did(rig: Rig) -> None:
    response = await rig.infer(question(ROWS))
    np.testing.assert_array_equal(scores(response), native(ROWS))
    assert (response.model_name, response.model_version, response.id) == ("m", "1", "7")
    said = told(response)
    assert said["weir_version"] == "m@1"
    assert said["weir_batch_rows"] == 5
    assert "weir_degraded" not in said
    assert said["weir_compute_us"] > 0
    assert {f"weir_{stage}_us" for stage in ("edge", "decode", "queue", "batch", "compute", "encode")} <= said.keys()


async def refused(rig: Rig, request: oip.ModelInferRequest, **more: Any) -> WeirError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.infer(request, **more)
    return from_rpc_error(caught.value)


async def test_an_unmodified_tritonclient_does_what_there_is_to_do(rig: Rig) -> None:
    client = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).with_name("triton_client.py")), rig.address, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(client.communicate(), 60)
    said = json.loads(out)
    expected = native(ROWS).tolist()
    assert said["scores"] == said["one by one"] == expected
    assert (said["live"], said["ready"], said["model_ready"]) == (True, True, [True, True])
    assert said["response"] == {"id": "9", "version": "1"}
    assert said["server"]["name"] == "weir"
    assert said["metadata"] == {
        "name": "m",
        "versions": ["1"],
        "platform": "xgboost",
        "inputs": [{"name": "features", "datatype": "FP32", "shape": ["-1", "4"]}],
        "outputs": [{"name": "score", "datatype": "FP32", "shape": ["-1"]}],
    }
    config = said["config"]["config"]
    assert (config["max_batch_size"], config["input"]) == (
        64,
        [{"name": "features", "data_type": "TYPE_FP32", "dims": ["4"]}],
    )
    assert {(each["name"], each["version"], each["state"]) for each in said["index"]["models"]} == {("m", "1", "READY")}
    counts = said["statistics"]["model_stats"][0]
    assert int(counts["inference_stats"]["success"]["count"]) >= 1
    assert int(counts["inference_stats"]["fail"]["count"]) >= 1
    assert int(counts["inference_count"]) >= 5
    assert int(counts["execution_count"]) >= 1
    assert int(counts["inference_stats"]["compute_infer"]["ns"]) > 0
    assert counts["batch_stats"]
    for what, name in (("sequence", "sequence_id"), ("load", "RepositoryModelLoad"), ("shared", "SystemSharedMemory")):
        status, message = said[what]
        assert status == "StatusCode.UNIMPLEMENTED"
        assert name in message
    assert said["shape"][0] == "StatusCode.INVALID_ARGUMENT"
    assert "dimension 1" in said["shape"][1]


async def test_a_tenant_is_told_of_what_it_may_use_and_of_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        own = pb.ModelGrant(subject="tenant:acme", models=["m"])
        await rig.put(pb.ModelGrant(subject="all"), own, pb.Tenant(id="globex", plan=pb.PLAN_PAID))
        await rig.pushed()
        await rig.loaded()
        await rig.infer(question(ROWS))
        for tenant, seen in (("acme", ["m"]), ("globex", [])):
            headers = tuple((EDGE | {"x-weir-tenant": tenant}).items())
            index = await rig.stub.RepositoryIndex(oip.RepositoryIndexRequest(), metadata=headers)
            counted = await rig.stub.ModelStatistics(oip.ModelStatisticsRequest(), metadata=headers)
            assert [each.name for each in index.models] == seen
            assert [each.name for each in counted.model_stats] == seen
        error = await refused(rig, question(ROWS), x_weir_tenant="globex")
        assert error.reason is Reason.MODEL_NOT_FOUND


async def test_two_callers_in_a_batch_get_their_own_rows_and_ids(rig: Rig) -> None:
    rows = np.random.default_rng(8).normal(size=(40, 4)).astype(np.float32)
    requests = []
    for number, row in enumerate(rows):
        request = question([row])
        request.id = str(number)
        requests.append(request)
    with rig.executors_busy("m@1") as waiting:
        calls = asyncio.gather(*(rig.infer(each) for each in requests))
        await until(lambda: waiting() == 40)
    answers = await calls
    assert [each.id for each in answers] == [str(number) for number in range(40)]
    np.testing.assert_array_equal([scores(each)[0] for each in answers], native(rows))
    assert max(told(each)["weir_batch_rows"] for each in answers) > 1


async def test_the_trailers_say_what_the_parameters_say(rig: Rig) -> None:
    call = rig.stub.ModelInfer(
        question(ROWS), metadata=(*EDGE.items(), ("x-weir-model-version", "m@1"), ("x-weir-arm", "canary")), timeout=5
    )
    response = await call
    trailers = dict(await call.trailing_metadata())
    assert trailers["x-weir-model-version"] == told(response)["weir_version"] == "m@1"
    assert trailers["x-weir-arm"] == told(response)["weir_arm"] == "canary"
    assert [part.partition(";")[0].strip() for part in trailers["server-timing"].split(",")] == [
        *("edge", "decode", "queue", "batch", "compute", "encode")
    ]


async def test_a_call_without_a_deadline_gets_its_profiles(rig: Rig) -> None:
    assert len(scores(await rig.infer(question(ROWS), seconds=None))) == 5


async def test_a_deadline_that_has_passed_is_refused_and_not_executed(rig: Rig) -> None:
    before = rig.predictor.statistics.of("m@1").rows
    error = await refused(rig, question(ROWS, timeout=1))
    assert error.reason in (Reason.REJECTED_DEADLINE, Reason.DEADLINE_EXCEEDED, Reason.EVICTED_DEADLINE)
    assert rig.predictor.statistics.of("m@1").rows == before


@pytest.mark.parametrize(
    ("headers", "reason", "limit"),
    [
        ({"x_weir_model": "other"}, Reason.INVALID_REQUEST, "model_name"),
        ({"x_weir_model": "m", "x_weir_model_version": "other@1"}, Reason.MODEL_NOT_FOUND, "model"),
        ({"x_weir_model_version": "other@1"}, Reason.INVALID_REQUEST, "model_name"),
        ({"x_weir_tenant": "stranger"}, Reason.MODEL_NOT_FOUND, "model"),
        ({"x_weir_scopes": "embeddings"}, Reason.SCOPE_MISSING, "scope"),
    ],
)
async def test_what_the_edge_says_must_fit(rig: Rig, headers: dict[str, str], reason: Reason, limit: str) -> None:
    error = await refused(rig, question(ROWS), **headers)
    assert (error.reason, error.limit) == (reason, limit)


async def test_an_error_is_typed_and_names_the_tensor(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.infer(question(ROWS[:, :3]))
    details = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(details)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason, info.metadata["limit"]) == ("weir", "INVALID_REQUEST", "features.shape[1]")


async def test_a_poison_row_fails_alone(rig: Rig) -> None:
    rows = np.random.default_rng(9).normal(size=(12, 4)).astype(np.float32)
    poison = rows.copy()
    poison[5, 2] = np.inf  # a number to predictions, and refused by what explains them
    explained = pb.PredictionStep(format="xgboost", path="model.ubj", options={"contributions": "why"})
    why = pb.TensorSpec(name="why", datatype="FP32", shape=[-1, 5])
    await rig.pushed(name="w", alias="w", spec=trees(steps=[explained], outputs=[*trees().outputs, why]))
    await rig.loaded("w@1")

    def asked(row: np.ndarray) -> oip.ModelInferRequest:
        request = question([row], "w")
        for name in ("score", "why"):
            request.outputs.add(name=name)
        return request

    answers = await asyncio.gather(*(rig.infer(asked(row)) for row in poison), return_exceptions=True)
    assert [number for number, each in enumerate(answers) if isinstance(each, BaseException)] == [5]
    good = [number for number in range(12) if number != 5]
    np.testing.assert_array_equal([scores(answers[n])[0] for n in good], native(rows)[good])  # type: ignore[arg-type]
    failed = answers[5]
    assert isinstance(failed, grpc.aio.AioRpcError)
    assert from_rpc_error(failed).limit == "features"


async def test_values_that_a_version_was_not_made_for_meet_what_its_manifest_says(rig: Rig) -> None:
    ruled = pb.TensorSpec(
        name="features",
        datatype="FP32",
        shape=[-1, 4],
        rules=[
            pb.ValueRule(columns=[0], nan="reject"),
            pb.ValueRule(columns=[1], nan="default", default_value=0.5, min=-1, max=1, beyond="clip"),
        ],
    )
    await rig.pushed(name="ruled", alias="ruled", spec=trees(inputs=[ruled]))
    await rig.loaded("ruled@1")
    sent = np.array([[0, np.nan, 0, 0], [0, np.inf, 0, np.nan], [0, 1, 0, 0]], np.float32)
    answer = await rig.infer(question(sent, "ruled"))
    given = np.array([[0, 0.5, 0, 0], [0, 1, 0, np.nan], [0, 1, 0, 0]], np.float32)
    np.testing.assert_array_equal(scores(answer), native(given))
    assert told(answer)["weir_degraded"] == "default_value,clipped"
    assert "weir_degraded" not in told(await rig.infer(question(given, "ruled")))
    for rows, parameters, limit in (
        ([[0, 0, 0, 0], [np.nan, 0, 0, 0]], {}, "features[1,0]"),
        (sent, {"degradable": False}, "features[0,1]"),
    ):
        error = await refused(rig, question(rows, "ruled", **parameters))
        assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, limit)
    shown = await rig.stub.ModelConfig(oip.ModelConfigRequest(name="ruled"), metadata=tuple(EDGE.items()), timeout=5)
    assert json.loads(shown.config.parameters["rules.features"].string_value)[1]["beyond"] == "clip"


async def test_versions_come_and_go_with_the_registry_and_failures_are_told_there(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        assert rig.predictor.endpoint_extra()["model_versions"] == []
        await rig.pushed()
        await rig.loaded()
        await rig.pushed("2", files={"model.ubj": booster(seed=2)}, alias="next")
        await rig.loaded("m@2")
        assert rig.predictor.endpoint_extra()["model_versions"] == ["m@1", "m@2"]
        assert told(await rig.infer(question(ROWS, "next")))["weir_version"] == "m@2"
        assert (await rig.infer(question(ROWS, "m", "2"))).model_version == "2"
        await rig.delete(keys.key("aliases", "next"))
        await until(lambda: rig.predictor.endpoint_extra()["model_versions"] == ["m@1"])
        assert told(await rig.infer(question(ROWS)))["weir_version"] == "m@1"
        for version, what, more in (
            ("3", "broken", {"files": {"model.ubj": b"{} nothing of the kind"}}),
            ("4", "unsigned", {"signed": False}),
            ("5", "no such format", {"spec": trees(steps=[pb.PredictionStep(format="pickle", path="model.ubj")])}),
        ):
            await rig.pushed(version, alias=f"v{version}", **more)
            failed = await rig.loaded(f"m@{version}", pb.LOAD_STATE_FAILED)
            assert failed.detail, what
        assert (await refused(rig, question(ROWS, "v3"))).reason is Reason.NO_WORKERS
        assert len(scores(await rig.infer(question(ROWS)))) == 5


async def test_a_move_and_a_way_back_while_batches_wait_lose_and_mix_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.pushed()
        await rig.pushed("2", files={"model.ubj": booster(seed=2)}, alias="next")
        await rig.loaded()
        await rig.loaded("m@2")
        expected = {"m@1": native(ROWS), "m@2": native(ROWS, seed=2)}
        assert (expected["m@1"] != expected["m@2"]).any()
        for old, new in (("m@1", "m@2"), ("m@2", "m@1")):
            with rig.executors_busy(old) as waiting:
                asking = [asyncio.create_task(rig.infer(question(ROWS), seconds=120.0)) for _ in range(8)]
                await until(lambda waiting=waiting: waiting() == 8 * len(ROWS))  # type: ignore[misc]
                await rig.put(pb.Alias(name="m", targets=[pb.AliasTarget(model_version=new, weight=100)]))
                await rig.loaded(new)
                moved = await rig.infer(question(ROWS))
                assert told(moved)["weir_version"] == new
                np.testing.assert_array_equal(scores(moved), expected[new])
                assert old in rig.predictor.endpoint_extra()["model_versions"], "what runs something was unloaded"
            for answer in await asyncio.gather(*asking):
                assert told(answer)["weir_version"] == old
                assert "weir_degraded" not in told(answer)
                np.testing.assert_array_equal(scores(answer), expected[old])
            if old == "m@1":  # nobody wants it any more; the way back loads it again
                await until(lambda: rig.predictor.endpoint_extra()["model_versions"] == ["m@2"])


async def test_a_version_that_cannot_be_loaded_is_stood_in_for(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.pushed(name="small", alias="")
        prior = b'{"outputs": [{"name": "score", "datatype": "FP32", "shape": [1], "data": [0.125]}]}'
        spec = trees(prior="prior.json", smaller=["small@1"])
        await rig.pushed(files={"model.ubj": b"{}", "prior.json": prior}, spec=spec)
        await rig.loaded("m@1", pb.LOAD_STATE_FAILED)
        await rig.loaded("small@1")
        answer = await rig.infer(question(ROWS))
        assert (told(answer)["weir_degraded"], told(answer)["weir_version"]) == ("smaller_version", "small@1")
        np.testing.assert_array_equal(scores(answer), native(ROWS))
        error = await refused(rig, question(ROWS, degradable=False))
        assert error.reason is Reason.NO_WORKERS
        await rig.delete(keys.key("models", "small@1"))
        await until(lambda: rig.predictor.endpoint_extra()["model_versions"] == [])
        answer = await rig.infer(question(ROWS))
        assert (told(answer)["weir_degraded"], scores(answer).tolist()) == ("prior", [0.125] * 5)


async def test_a_drain_lets_what_runs_end_and_takes_nothing_new(tmp_path: Path) -> None:
    async with running(tmp_path, lame_duck_seconds=0.5) as rig:
        await rig.pushed()
        await rig.loaded()
        draining = asyncio.create_task(rig.predictor.drain())
        assert len(await asyncio.gather(*(rig.infer(question([row])) for row in ROWS))) == 5
        await draining
        assert (await refused(rig, question(ROWS))).reason is Reason.DRAINING
        assert not (await rig.stub.ServerReady(oip.ServerReadyRequest(), metadata=tuple(EDGE.items()))).ready
