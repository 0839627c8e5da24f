"""What the registry accepts and refuses of versions that answer predictions; the demo models are such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import FolderError, Options, describe
from libs.resources.checks.models import check_model
from libs.resources.schemas import schema_sha256
from libs.resources.snapshot import RegistrySnapshot
from libs.shipped import ROOT
from tests.support.messages import having

DEMO = ROOT / "models" / "demo"
HEX = "a" * 64
STEP = pb.PredictionStep(format="onnx", path="model.onnx")
FEATURES = pb.TensorSpec(name="features", datatype="FP32", shape=[-1, 30])
SPEC = pb.PredictionSpec(
    steps=[STEP],
    inputs=[FEATURES],
    outputs=[pb.TensorSpec(name="probability", datatype="FP32", shape=[-1])],
    max_rows=64,
    golden="golden.json",
    profile="classical",
    smaller=["cancer-linear@1"],
)
MODEL = pb.ModelVersion(
    name="cancer",
    version="1",
    source="blobs:",
    architecture="onnx",
    pool="predict",
    artifacts=[pb.Artifact(path=path, sha256=HEX, bytes=1) for path in ("model.onnx", "golden.json")],
    sampling_defaults=pb.SamplingDefaults(top_p=1.0),
    prediction=SPEC,
)


def shape(*sizes: int) -> dict[str, Any]:
    return {"inputs": [having(FEATURES, shape=sizes)]}


NAMED = [pb.ColumnSpec(name=f"c{number}") for number in range(30)]


def columns(*said: pb.ColumnSpec, at: list[int] | None = None) -> dict[str, Any]:
    return {"inputs": [having(FEATURES, shape=at or [-1, 30], columns=said)]}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"steps": []}, ["steps"]),
        ({"steps": [STEP] * 9}, ["steps"]),
        ({"steps": [having(STEP, format="pickle")]}, ["steps[0].format"]),
        ({"steps": [STEP, having(STEP, path="elsewhere.onnx")]}, ["steps[1].path"]),
        ({"inputs": []}, ["inputs"]),
        ({"inputs": [FEATURES, FEATURES]}, ["inputs[1].name"]),
        ({"inputs": [having(FEATURES, name="")]}, ["inputs[0].name"]),
        ({"inputs": [having(FEATURES, datatype="float32")]}, ["inputs[0].datatype"]),
        (shape(), ["inputs[0].shape"]),
        (shape(8, 30), ["inputs[0].shape[0]"]),
        (shape(-1, 0), ["inputs[0].shape[1]"]),
        (shape(-1, -2), ["inputs[0].shape[1]"]),
        (shape(-1, 2**31), ["inputs[0].shape[1]"]),
        (shape(8, 30) | {"max_rows": 0, "outputs": [FEATURES]}, []),
        (columns(*NAMED), []),
        (columns(*NAMED[1:]), ["inputs[0].columns"]),
        (columns(*NAMED, at=[-1]), ["inputs[0].columns"]),
        (columns(NAMED[1], *NAMED[1:]), ["inputs[0].columns[1].name"]),
        (columns(having(NAMED[0], categories=["x"]), *NAMED[1:]), ["inputs[0].columns[0].categories"]),
        (
            columns(pb.ColumnSpec(categorical=True, categories=["x"] * 4097), *NAMED[1:]),
            ["inputs[0].columns[0].categories"],
        ),
        ({"max_rows": 65_537}, ["max_rows"]),
        ({"lane": "gpu"}, ["lane"]),
        ({"profile": ""}, ["profile"]),
        ({"golden": "rows.json"}, ["golden"]),
        ({"golden": ""}, ["golden"]),
        ({"golden": "", "no_golden_reason": "its answers are drawn"}, []),
        ({"no_golden_reason": "its answers are drawn"}, ["no_golden_reason"]),
        ({"golden": "", "no_golden_reason": "x" * 257}, ["no_golden_reason"]),
        ({"prior": "prior.json"}, ["prior"]),
        ({"smaller": ["cancer"]}, ["smaller[0]"]),
        ({"smaller": ["cancer@1"]}, ["smaller[0]"]),
    ],
)
def test_every_fault_is_named_by_its_field(changes: dict[str, Any], fields: list[str]) -> None:
    model = having(MODEL, prediction=having(SPEC, **changes))
    assert [each.field for each in check_model(model, RegistrySnapshot())] == [f"spec.prediction.{e}" for e in fields]


COLOUR = pb.TensorSpec(name="colour", datatype="BYTES", shape=[-1])
COUNT = pb.TensorSpec(name="count", datatype="UINT8", shape=[-1, 2])
AGE = pb.ValueRule(columns=[3], nan="default", default_value=40, min=0, max=120, beyond="clip")


@pytest.mark.parametrize(
    ("tensor", "rules", "fields"),
    [
        (FEATURES, [AGE, pb.ValueRule(columns=[0, 29], categories=["0", "1.5"], unseen="missing")], []),
        (FEATURES, [pb.ValueRule(nan="reject", max=1, beyond="reject")], []),
        (COLOUR, [pb.ValueRule(categories=["red", "gr\u00fcn"], unseen="missing")], []),
        (COUNT, [pb.ValueRule(columns=[1], categories=["7"], unseen="reject")], []),
        (FEATURES, [AGE, pb.ValueRule(nan="reject")], ["rules[1].columns"]),
        (FEATURES, [AGE, having(AGE, columns=[4, 3])], ["rules[1].columns[1]"]),
        (FEATURES, [having(AGE, columns=[30])], ["rules[0].columns[0]"]),
        (having(FEATURES, shape=[-1, -1]), [AGE], ["rules[0].columns"]),
        (having(FEATURES, shape=[-1]), [AGE], ["rules[0].columns"]),
        (
            FEATURES,
            [pb.ValueRule(nan="drop", unseen="drop", beyond="drop")],
            ["rules[0].nan", "rules[0].unseen", "rules[0].beyond"],
        ),
        (FEATURES, [pb.ValueRule(default_value=1)], ["rules[0].default_value"]),
        (FEATURES, [pb.ValueRule(nan="default", default_value=float("inf"))], ["rules[0].default_value"]),
        (having(FEATURES, datatype="FP16"), [pb.ValueRule(max=70_000, beyond="clip")], ["rules[0].max"]),
        (FEATURES, [pb.ValueRule(unseen="reject")], ["rules[0].categories"]),
        (
            FEATURES,
            [pb.ValueRule(categories=["red", "nan"], unseen="reject")],
            ["rules[0].categories[0]", "rules[0].categories[1]"],
        ),
        (FEATURES, [pb.ValueRule(categories=["1"], max=1)], ["rules[0].categories"]),
        (FEATURES, [pb.ValueRule(beyond="clip")], ["rules[0].beyond"]),
        (FEATURES, [pb.ValueRule(min=2, max=1, beyond="clip")], ["rules[0].max"]),
        (FEATURES, [pb.ValueRule(min=float("nan"), beyond="clip")], ["rules[0].min"]),
        (COLOUR, [pb.ValueRule(nan="reject")], ["rules[0].nan"]),
        (COLOUR, [pb.ValueRule(max=1, beyond="reject")], ["rules[0].max"]),
        (COUNT, [pb.ValueRule(min=-1, beyond="clip")], ["rules[0].min"]),
        (COUNT, [pb.ValueRule(max=0.5, beyond="clip")], ["rules[0].max"]),
        (COUNT, [pb.ValueRule(categories=["256"], unseen="missing")], ["rules[0].unseen", "rules[0].categories[0]"]),
        (having(COUNT, datatype="BOOL"), [pb.ValueRule(max=1, beyond="clip")], ["rules[0].max"]),
    ],
)
def test_every_fault_of_a_rule_is_named_by_its_field(
    tensor: pb.TensorSpec, rules: list[pb.ValueRule], fields: list[str]
) -> None:
    model = having(MODEL, prediction=having(SPEC, inputs=[having(tensor, rules=rules)]))
    found = [each.field for each in check_model(model, RegistrySnapshot())]
    assert found == [f"spec.prediction.inputs[0].{each}" for each in fields]


def test_outputs_have_no_rules() -> None:
    model = having(MODEL, prediction=having(SPEC, outputs=[having(FEATURES, rules=[pb.ValueRule(nan="reject")])]))
    assert [each.field for each in check_model(model, RegistrySnapshot())] == ["spec.prediction.outputs[0].rules"]


def test_a_schema_that_is_not_that_of_inputs_and_outputs_is_refused_naming_both() -> None:
    right = schema_sha256(SPEC)
    assert not list(check_model(having(MODEL, schema_sha256=right), RegistrySnapshot()))
    (fault,) = check_model(having(MODEL, schema_sha256=HEX), RegistrySnapshot())
    assert fault.field == "spec.schema_sha256"
    assert HEX[:40] in fault.message
    assert right in fault.message


def test_what_stands_in_for_a_version_takes_and_gives_the_same() -> None:
    other = having(MODEL, name="cancer-linear", prediction=having(SPEC, smaller=[]))
    assert not list(check_model(MODEL, RegistrySnapshot(model_versions={"cancer-linear@1": other})))
    odd = having(other, prediction=having(SPEC, smaller=[], inputs=[having(FEATURES, shape=[-1, 31])]))
    (fault,) = check_model(MODEL, RegistrySnapshot(model_versions={"cancer-linear@1": odd}))
    assert fault.field == "spec.prediction.smaller[0]"


@pytest.mark.parametrize(
    ("name", "score"),
    [
        *(("cancer-gbdt", "accuracy"), ("cancer-linear", "accuracy"), ("digits-torch", "accuracy")),
        *(("digits-int8", "accuracy"), ("topics", "accuracy"), ("diabetes-lgbm", "r2"), ("wine-sklearn", "accuracy")),
    ],
)
def test_the_demo_models_are_versions_that_the_registry_takes(name: str, score: str) -> None:
    version = describe(DEMO / name, Options())
    assert version.prediction.golden in {artifact.path for artifact in version.artifacts}
    assert version.offline_metrics[score] > (0.7 if score == "accuracy" else 0.3)
    card = (DEMO / name / "card.md").read_text()
    assert "**Data.**" in card
    assert f"| {score} | {version.offline_metrics[score]:.3f} (" in card
    version.source = "blobs:"
    assert not list(check_model(version, RegistrySnapshot()))


def test_a_folder_says_what_is_wrong_with_its_prediction(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    said = '{"name": "a", "version": "1", "pool": "p", "architecture": "onnx", "prediction": {"stepz": []}}'
    (tmp_path / "manifest.json").write_text(said)
    with pytest.raises(FolderError, match=r"manifest\.json: prediction: .*stepz"):
        describe(tmp_path, Options())
