"""The schema of a version that predicts."""

from __future__ import annotations

from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.resources.schemas import schema_changes, schema_of, schema_sha256
from tests.support.messages import having

AGE, CITY = pb.ColumnSpec(name="age"), pb.ColumnSpec(name="city", categorical=True, categories=["Rome", "Bern"])
TABLE = pb.TensorSpec(name="table", datatype="FP32", shape=[-1, 2], columns=[AGE, CITY])
TEXT = pb.TensorSpec(name="text", datatype="BYTES", shape=[-1])
SPEC = pb.PredictionSpec(inputs=[TABLE, TEXT], outputs=[pb.TensorSpec(name="score", datatype="FP32", shape=[-1])])


def test_it_stays_what_it_is() -> None:
    """Manifests that are signed hold it."""
    assert schema_sha256(SPEC) == "92bb8dbff8c73e7f12600d104fcdaa5907e709396a96a27f53ff5ceef9eba099"


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": [TEXT, TABLE]},
        {"steps": [pb.PredictionStep(format="onnx", path="other.onnx")]},
        {"max_rows": 7},
        {"smaller": ["a@1"], "prior": "prior.json", "golden": "golden.json"},
    ],
)
def test_what_is_no_part_of_it(changes: dict[str, Any]) -> None:
    other = having(SPEC, **changes)
    assert schema_sha256(other) == schema_sha256(SPEC)
    assert schema_changes(SPEC, other) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inputs": [TABLE]}, ["no input 'text'"]),
        ({"outputs": [*SPEC.outputs, TEXT]}, ["a new output 'text'"]),
        ({"inputs": [TABLE, having(TEXT, datatype="INT64")]}, ["another datatype of input 'text' (BYTES → INT64)"]),
        ({"inputs": [having(TABLE, shape=[-1, -1]), TEXT]}, ["another shape of input 'table' ([-1, 2] → [-1, -1])"]),
        ({"inputs": [having(TABLE, columns=[CITY, AGE]), TEXT]}, ["other columns of input 'table'"]),
        (
            {"inputs": [having(TABLE, columns=[AGE, having(CITY, categories=["Bern", "Rome"])]), TEXT]},
            ["other columns"],
        ),
        ({"inputs": [having(TABLE, columns=[AGE, having(CITY, categorical=False)]), TEXT]}, ["other columns"]),
        ({"inputs": [TABLE], "outputs": [TEXT]}, ["a new output 'text'", "no input 'text'", "no output 'score'"]),
    ],
)
def test_what_changes_it_is_said(changes: dict[str, Any], said: list[str]) -> None:
    other = having(SPEC, **changes)
    assert schema_sha256(other) != schema_sha256(SPEC)
    found = schema_changes(SPEC, other)
    assert len(found) == len(said)
    assert all(each.startswith(part) for each, part in zip(found, said, strict=True))


def test_a_versions() -> None:
    assert schema_of(pb.ModelVersion(prediction=SPEC)) == schema_sha256(SPEC)
    assert schema_of(pb.ModelVersion(schema_sha256="a")) == "a"
