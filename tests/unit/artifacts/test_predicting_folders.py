"""Which file of a folder is a model that predicts, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import FolderError, FormatError, Options, describe
from libs.artifacts.predicting import begun
from libs.resources.schemas import schema_sha256

TREES = b'{"learner":{"x":1}}'
TEXT = b"tree\nversion=v4\n"
GRAPH = b"\x08\x09\x3a\x00"
PICKLE = pickle.dumps({"a": 1}, protocol=0)


def folder(path: Path, **files: bytes) -> Path:
    for name, content in files.items():
        (path / name.replace("__", ".")).write_bytes(content)
    return path


def steps(path: Path, format_: str = "") -> list[tuple[str, str]]:
    found = begun(path, format_)
    assert found is not None
    return [(step.path, step.format) for step in found[0].steps]


@pytest.mark.parametrize(
    ("content", "format_"),
    [(TREES, "xgboost"), (TEXT, "lightgbm"), (GRAPH, "onnx")],
    ids=["xgboost", "lightgbm", "onnx"],
)
def test_the_model_is_found_beside_other_files(tmp_path: Path, content: bytes, format_: str) -> None:
    folder(tmp_path, weights__bin=content, card__md=b"# A card", golden__csv=b"1,2\n", labels__txt=b"cat\ndog\n")
    assert steps(tmp_path) == steps(tmp_path, format_) == [("weights.bin", format_)]


def test_a_manifest_may_say_a_part(tmp_path: Path) -> None:
    said = {"prediction": {"profile": "deep", "steps": [{"path": "b.onnx"}]}}
    folder(tmp_path, a__onnx=GRAPH, b__onnx=GRAPH, manifest__json=json.dumps(said).encode())
    assert steps(tmp_path) == [("b.onnx", "onnx")]


def test_what_is_not_certain_is_said(tmp_path: Path) -> None:
    """A JSON file in another order of fields, as an editor may leave it."""
    folder(tmp_path, model__json=b'{"version":[3,2,0],"learner":{}}', golden__json=b"{}")
    assert begun(tmp_path) is None
    assert steps(tmp_path, "xgboost") == [("model.json", "xgboost")]


@pytest.mark.parametrize("format_", ["xgboost", "lightgbm", "sklearn"])
def test_a_format_that_the_file_contradicts_names_both(tmp_path: Path, format_: str) -> None:
    with pytest.raises(FormatError, match=rf"model.bin is said to be {format_}, but it is onnx") as refused:
        begun(folder(tmp_path, model__bin=GRAPH), format_)
    assert (refused.value.path, refused.value.said, refused.value.found) == ("model.bin", format_, "onnx")


def test_a_manifest_that_the_file_or_the_person_contradicts(tmp_path: Path) -> None:
    said = {"prediction": {"steps": [{"path": "model.ubj", "format": "lightgbm"}]}}
    folder(tmp_path, model__ubj=TREES, manifest__json=json.dumps(said).encode())
    with pytest.raises(FormatError, match=r"model.ubj is said to be lightgbm, but it is xgboost"):
        begun(tmp_path)
    with pytest.raises(FormatError, match=r"model.ubj is said to be lightgbm, but it is xgboost"):
        describe(tmp_path, Options(name="m", version="1", pool="p"))
    said["prediction"]["steps"][0]["format"] = "xgboost"
    folder(tmp_path, manifest__json=json.dumps(said).encode())
    with pytest.raises(FormatError, match=r"said to be onnx, but it is xgboost by manifest.json"):
        begun(tmp_path, "onnx")


@pytest.mark.parametrize("format_", ["", "sklearn", "xgboost"])
@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "model.ubj", "model"])
def test_a_pickle_is_refused_by_name_with_what_to_do(tmp_path: Path, name: str, format_: str) -> None:
    (tmp_path / name).write_bytes(PICKLE)
    with pytest.raises(FolderError, match=f"'{name}' is a pickle, and .*: save it as .*skops.io.dump"):
        begun(tmp_path, format_)


def test_a_pickle_of_a_hand_written_manifest_is_refused_by_whoever_pushes(tmp_path: Path) -> None:
    said = {"prediction": {"steps": [{"path": "model.skops", "format": "sklearn"}]}}
    folder(tmp_path, model__skops=PICKLE, manifest__json=json.dumps(said).encode())
    for push in (lambda: begun(tmp_path), lambda: describe(tmp_path, Options(name="m", version="1", pool="p"))):
        with pytest.raises(FolderError, match=r"'model.skops' is a pickle"):
            push()


def test_checkpoints_of_models_that_generate_stay_what_they_are(tmp_path: Path) -> None:
    folder(tmp_path, config__json=b"{}", model__safetensors=b"w", training_args__bin=pickle.dumps([1]))
    assert begun(tmp_path) is None
    assert begun(folder(tmp_path / "..", other__md=b"text") / tmp_path.name) is None


@pytest.mark.parametrize(
    ("files", "format_", "said"),
    [
        ({"a__onnx": GRAPH, "b__txt": TEXT}, "", "a.onnx is onnx, b.txt is lightgbm: say in manifest.json which one"),
        ({"a__onnx": GRAPH, "b__onnx": GRAPH}, "onnx", "a.onnx is onnx, b.onnx is onnx: say"),
        ({"a__md": b"x"}, "onnx", "no file is onnx"),
        ({"a__md": b"x", "manifest__json": b'{"prediction": {"profile": "deep"}}'}, "", "no file is certainly a model"),
        ({"manifest__json": b'{"prediction": []}', "a__onnx": GRAPH}, "", None),
        ({"manifest__json": b'{"prediction": [1]}'}, "", "prediction must be an object"),
        ({"manifest__json": b'{"prediction": {"steps": [{"path": "../a"}]}}'}, "", "there is no file '../a'"),
    ],
)
def test_what_cannot_be_said_is_asked_for(
    tmp_path: Path, files: dict[str, bytes], format_: str, said: str | None
) -> None:
    folder(tmp_path, **files)
    if said is None:
        assert steps(tmp_path) == [("a.onnx", "onnx")]
        return
    with pytest.raises(FolderError) as refused:
        begun(tmp_path, format_)
    assert said in str(refused.value)


def test_pool_and_architecture_of_predictions(tmp_path: Path) -> None:
    """The pool is that of the mesh's predictions, if they have one only."""
    spec = pb.PredictionSpec(steps=[pb.PredictionStep(path="m.onnx", format="onnx")])
    other = pb.ModelVersion(name="o", version="1", pool="predict", prediction=spec)
    options = Options(name="m", version="1", prediction=spec)
    made = describe(folder(tmp_path, m__onnx=GRAPH), options, [other, pb.ModelVersion(name="g", pool="demo")])
    assert (made.pool, made.architecture, made.prediction) == ("predict", "onnx", spec)
    second = pb.ModelVersion(name="p", version="1", pool="others", prediction=spec)
    with pytest.raises(FolderError, match="does not say its pool"):
        describe(tmp_path, options, [other, second])


def test_a_version_that_predicts_has_the_schema_of_its_inputs_and_outputs(tmp_path: Path) -> None:
    spec = {"steps": [{"path": "m.onnx", "format": "onnx"}], "inputs": [{"name": "x", "datatype": "FP32"}]}
    folder(tmp_path, m__onnx=GRAPH, schema__json=b"{}", manifest__json=json.dumps({"prediction": spec}).encode())
    options = Options(name="m", version="1", pool="p")
    made = describe(tmp_path, options)
    assert made.schema_sha256 == schema_sha256(made.prediction)
    right = {"prediction": spec, "schema_sha256": made.schema_sha256}
    assert describe(folder(tmp_path, manifest__json=json.dumps(right).encode()), options) == made
    wrong = {**right, "schema_sha256": "a" * 64}
    with pytest.raises(FolderError, match=f"schema_sha256 is {'a' * 64}; .* have {made.schema_sha256}"):
        describe(folder(tmp_path, manifest__json=json.dumps(wrong).encode()), options)


def test_added_files_are_the_versions_and_not_the_folders(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    folder(tmp_path / "folder", m__onnx=GRAPH, golden__json=b"old")
    (tmp_path / "new").write_bytes(b"newer")
    spec = pb.PredictionSpec(steps=[pb.PredictionStep(path="m.onnx", format="onnx")])
    options = Options(name="m", version="1", pool="p", prediction=spec, added={"golden.json": tmp_path / "new"})
    made = describe(tmp_path / "folder", options)
    assert {each.path: each.bytes for each in made.artifacts} == {"golden.json": 5, "m.onnx": 4}
