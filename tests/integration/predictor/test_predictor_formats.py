"""Demo models of formats that the other tests do not serve, from the registry to an answer; and what is not served."""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from google.protobuf import json_format
from inference import open_inference_pb2 as oip
from weir.registry.v1 import registry_pb2 as pb

from libs.shipped import ROOT
from tests.support.predictor import Rig, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEMO = ROOT / "models" / "demo"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with running(tmp_path_factory.mktemp("formats")) as rig:
        yield rig


def shipped(name: str) -> tuple[dict[str, bytes], pb.PredictionSpec, dict[str, Any]]:
    """A demo model's files, what it says, and its golden rows."""
    manifest = json.loads((DEMO / name / "manifest.json").read_text())
    files = {each["path"]: (DEMO / name / each["path"]).read_bytes() for each in manifest["files"]}
    spec = json_format.ParseDict(manifest["prediction"], pb.PredictionSpec())
    return files, spec, json.loads(files["golden.json"])["cases"][0]


@pytest.mark.parametrize(
    ("name", "output"), [("diabetes-lgbm", "progression"), ("wine-sklearn", "probabilities")], ids=["lightgbm", "skops"]
)
async def test_a_model_answers_its_golden_rows(rig: Rig, name: str, output: str) -> None:
    files, spec, golden = shipped(name)
    await rig.pushed(name=name, alias=name, spec=spec, files=files)
    await rig.loaded(f"{name}@1")
    (given,) = golden["inputs"]
    request = oip.ModelInferRequest(model_name=name)
    request.inputs.add(name=given["name"], datatype="FP64", shape=given["shape"])
    request.raw_input_contents.append(np.array(given["data"], np.float64).tobytes())
    request.outputs.add(name=output)
    response = await rig.infer(request)
    assert response.outputs[0].name == output
    (expected,) = (each["data"] for each in golden["outputs"] if each["name"] == output)
    np.testing.assert_allclose(np.frombuffer(response.raw_output_contents[0], np.float64), expected, 1e-4, 1e-5)


async def test_golden_rows_that_do_not_come_out_and_pickles_are_told_to_the_registry(rig: Rig) -> None:
    files, spec, golden = shipped("diabetes-lgbm")
    golden["outputs"][0]["data"][3] += 1
    wrong = {**files, "golden.json": json.dumps({"cases": [golden]}).encode()}
    await rig.pushed(name="wrong", alias="wrong", spec=spec, files=wrong)
    failed = await rig.loaded("wrong@1", pb.LOAD_STATE_FAILED)
    assert "golden case 0, output 'progression': differs at [3] (1 of 8 elements)" in failed.detail
    disguised = {**files, "model.txt": pickle.dumps({"a": 1}, protocol=0)}
    await rig.pushed(name="disguised", alias="disguised", spec=spec, files=disguised)
    failed = await rig.loaded("disguised@1", pb.LOAD_STATE_FAILED)
    assert "'model.txt' is a pickle" in failed.detail
