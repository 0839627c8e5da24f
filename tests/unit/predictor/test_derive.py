"""What a model's own library says of it, and its answers to golden rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import onnx
import pytest
import skops.io
import xgboost as xgb
from onnx import TensorProto, helper
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from weir.registry.v1 import registry_pb2 as pb

from services.predictor.derive.__main__ import derive
from services.predictor.formats import LoadError
from services.predictor.golden import array_of
from services.predictor.port import Tensor
from tests.unit.predictor.specs import step

RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(200, 3))
X[:, 1] = RANDOM.integers(0, 4, 200)
Y = (X[:, 0] + X[:, 1] > 1).astype(int)
NAMES = ["age", "city", "income"]


def found(
    folder: Path, format_: str, golden: str = "", max_rows: int | None = None, **said: Any
) -> tuple[pb.PredictionSpec, dict[str, Any]]:
    """What is derived of "m", and what is written of golden rows."""
    spec = pb.PredictionSpec(steps=[step(format_, "m")], profile="classical", **said)
    to = folder / "to.json"
    told = derive(folder, spec, max_rows, folder / golden if golden else None, to)
    return spec, {**told, "cases": json.loads(to.read_text())["cases"] if golden else []}


def words(tensors: Any) -> list[str]:
    """ "features FP32 [-1, 3] age,*city,income": a star marks categories."""
    return [
        f"{each.name} {each.datatype} {list(each.shape)} "
        + ",".join("*" * column.categorical + column.name for column in each.columns)
        for each in tensors
    ]


def test_xgboost_says_features_and_what_they_are(tmp_path: Path) -> None:
    matrix = xgb.DMatrix(X, Y, feature_names=NAMES, feature_types=["q", "c", "q"], enable_categorical=True)
    booster = xgb.train({"objective": "multi:softprob", "num_class": 2}, matrix, 4)
    booster.save_model(tmp_path / "m.ubj")
    (tmp_path / "m.ubj").rename(tmp_path / "m")
    # In another order, with a column that the model does not take and a value that is missing.
    (tmp_path / "rows.csv").write_text("income,label,city,age\n0.5,1,3,1.5\n,0,2,-1\n")
    spec, told = found(tmp_path, "xgboost", "rows.csv")
    assert words(spec.inputs) == ["features FP32 [-1, 3] age,*city,income"]
    assert words(spec.outputs) == ["prediction FP32 [-1, 2] "]
    assert (spec.max_rows, told["rows"], told["answered"]) == (256, 2, True)
    rows = np.array([[1.5, 3, 0.5], [-1, 2, np.nan]], np.float32)
    (case,) = told["cases"]
    kept = array_of(case["inputs"], Tensor("features", "FP32", (-1, 3)), "")
    assert np.array_equal(kept, rows, equal_nan=True)
    native = booster.predict(
        xgb.DMatrix(rows, feature_names=NAMES, feature_types=["q", "c", "q"], enable_categorical=True)
    )
    assert np.array_equal(array_of(case["outputs"], Tensor("prediction", "FP32", (-1, 2)), ""), native)


def test_lightgbm_says_features_and_categories(tmp_path: Path) -> None:
    data = lgb.Dataset(X, Y, feature_name=NAMES, categorical_feature=[1])
    settings = {"objective": "regression", "verbosity": -1, "min_data_per_group": 1, "num_threads": 1}
    booster = lgb.train(settings, data, 5)
    booster.save_model(tmp_path / "m")
    (tmp_path / "rows.json").write_text(json.dumps({"features": [[0.5, 2, 1.0], [None, 99, 0]]}))
    spec, told = found(tmp_path, "lightgbm", "rows.json", outputs=[pb.TensorSpec(name="grade")])
    assert words(spec.inputs) == ["features FP64 [-1, 3] age,*city,income"]
    assert words(spec.outputs) == ["grade FP64 [-1] "]
    native = np.asarray(booster.predict([[0.5, 2, 1.0], [np.nan, 99, 0]], num_threads=1))
    (case,) = told["cases"]
    assert np.array_equal(array_of(case["outputs"], Tensor("grade", "FP64", (-1,)), ""), native)


def test_scikit_learn_says_features_and_classes(tmp_path: Path) -> None:
    skops.io.dump(LogisticRegression().fit(X, np.array(["no", "yes"])[Y]), tmp_path / "m")
    spec, told = found(tmp_path, "sklearn")
    assert words(spec.inputs) == ["features FP64 [-1, 3] "]
    assert words(spec.outputs) == ["prediction BYTES [-1] ", "probabilities FP64 [-1, 2] no,yes"]
    assert dict(spec.steps[0].options) == {"predict": "prediction", "predict_proba": "probabilities"}
    assert (told["rows"], told["answered"]) == (0, False)


@pytest.mark.parametrize(
    ("estimator", "outputs"),
    [
        (LinearRegression().fit(X, Y), ["prediction FP64 [-1] "]),
        (StandardScaler().fit(X), ["transformed FP64 [-1, 3] "]),
    ],
    ids=["regression", "scaler"],
)
def test_scikit_learn_without_classes(tmp_path: Path, estimator: Any, outputs: list[str]) -> None:
    skops.io.dump(estimator, tmp_path / "m")
    assert words(found(tmp_path, "sklearn")[0].outputs) == outputs


def test_what_a_library_does_not_say_is_asked_for_and_taken(tmp_path: Path) -> None:
    texts, labels = ["a red car", "a green tree", "a red bus", "a tree"], [1, 0, 1, 0]
    skops.io.dump(make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts, labels), tmp_path / "m")
    (tmp_path / "rows.csv").write_text("text\na red bus\n")
    with pytest.raises(LoadError, match="nothing says what input 'text' is: --input text:DATATYPE:SHAPE does"):
        found(tmp_path, "sklearn", inputs=[pb.TensorSpec(name="text")])
    said = [pb.TensorSpec(name="text", datatype="BYTES", shape=[-1])]
    spec, told = found(tmp_path, "sklearn", "rows.csv", inputs=said, outputs=[pb.TensorSpec(name="label")])
    assert words(spec.inputs) == ["text BYTES [-1] "]
    assert words(spec.outputs) == ["label INT64 [-1] "]
    assert told["cases"][0]["outputs"][0]["data"] == [1]


def graph(path: Path, *shape: Any) -> None:
    made = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Cast", ["x"], ["t"], to=TensorProto.STRING)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("t", TensorProto.STRING, shape),
        ],
    )
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path / "m")


def test_onnx_says_all_of_it(tmp_path: Path) -> None:
    graph(tmp_path, "rows", 2)
    (tmp_path / "rows.csv").write_text("1,2\n3,4\n")
    spec, told = found(tmp_path, "onnx", "rows.csv")
    assert words(spec.inputs) == ["x FP32 [-1, 2] "]
    assert words(spec.outputs) == ["y FP32 [-1, 2] ", "t BYTES [-1, 2] "]
    assert [each["data"] for each in told["cases"][0]["outputs"]] == [[-1, -2, -3, -4], ["1", "2", "3", "4"]]
    assert spec.max_rows == 256
    assert found(tmp_path, "onnx", max_rows=0)[0].max_rows == 0


def test_a_graph_of_one_size_takes_its_inputs_whole(tmp_path: Path) -> None:
    graph(tmp_path, 1, 2)
    spec, _ = found(tmp_path, "onnx")
    assert (words(spec.inputs), spec.max_rows) == (["x FP32 [1, 2] "], 0)


def test_a_graph_that_says_all_is_not_tried(tmp_path: Path) -> None:
    """Zeros may be what it refuses: here, a row that is not there."""
    made = helper.make_graph(
        [helper.make_node("Gather", ["table", "at"], ["y"])],
        "g",
        [helper.make_tensor_value_info("at", TensorProto.INT64, ["rows"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3])],
        [onnx.numpy_helper.from_array(np.zeros((0, 3), np.float32), "table")],
    )
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m")
    assert words(found(tmp_path, "onnx")[0].outputs) == ["y FP32 [-1, 3] "]


def test_golden_rows_that_have_answers_keep_them_and_must_come_out(tmp_path: Path) -> None:
    graph(tmp_path, "rows", 2)
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]
    case = {"inputs": inputs, "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [-1, -2]}]}
    (tmp_path / "rows.json").write_text(json.dumps({"cases": [case]}))
    _, told = found(tmp_path, "onnx", "rows.json")
    assert (told["answered"], told["cases"]) == (False, [case])
    case["outputs"][0]["data"] = [-1, -3]
    (tmp_path / "rows.json").write_text(json.dumps({"cases": [{"inputs": inputs}, case]}))
    with pytest.raises(LoadError, match="golden case 1, output 'y': differs at"):
        found(tmp_path, "onnx", "rows.json")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("r.csv", "1,2,3\n", r"golden rows: input 'x' is \[1, 3\], not \[-1, 2\]"),
        ("r.csv", "1,x\n", "row 1, column 2: 'x' is no FP32"),
        ("r.csv", "", "the file has no rows"),
        ("r.csv", "1,2\n" * 5000, "r.csv has 5000 golden rows; at most 4096 are kept"),
        ("r.json", "[]", "r.json is no JSON object"),
        ("r.json", "{", "r.json has no golden rows that fit: JSONDecodeError"),
        ("r.json", '{"cases": []}', "r.json has no cases"),
        ("r.json", '{"cases": [{"inputs": [{"name": "x", "shape": []}]}]}', "no golden rows that fit: IndexError"),
        ("r.json", '{"cases": [{"inputs": 5}]}', "no golden rows that fit: TypeError"),
        ("r.json", '{"z": [[1, 2]]}', "golden rows have an input 'z'; the model takes 'x'"),
        ("r.json", "{}", "golden rows have no input 'x'"),
        ("r.json", '{"x": [[1, 2], [3]]}', "r.json has no golden rows that fit: ValueError"),
        ("absent.csv", None, "absent.csv has no golden rows that fit: FileNotFoundError"),
    ],
)
def test_golden_rows_that_do_not_fit_are_refused(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    graph(tmp_path, "rows", 2)
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(LoadError, match=said):
        found(tmp_path, "onnx", name)


def test_what_contradicts_the_model_is_refused(tmp_path: Path) -> None:
    graph(tmp_path, "rows", 2)
    with pytest.raises(LoadError, match="the model has no input 'z'; it takes 'x'"):
        found(tmp_path, "onnx", inputs=[pb.TensorSpec(name="z", datatype="FP32", shape=[-1, 2])])
    with pytest.raises(LoadError, match="input 'x' is declared FP64; the model has FP32"):
        found(tmp_path, "onnx", inputs=[pb.TensorSpec(name="x", datatype="FP64")])
    with pytest.raises(LoadError, match="no XGBoost model"):
        found(tmp_path, "xgboost")
    with pytest.raises(LoadError, match="the manifest must say those of others"):
        found(tmp_path, "torch")


def test_a_type_that_is_not_trusted_is_not_made(tmp_path: Path) -> None:
    skops.io.dump({"path": Path("/tmp"), "estimator": LinearRegression()}, tmp_path / "m")
    with pytest.raises(LoadError, match="types that are not trusted: pathlib"):
        found(tmp_path, "sklearn")


def test_options_of_a_step_hold_for_golden_answers_too(tmp_path: Path) -> None:
    booster = xgb.train({"objective": "binary:logistic"}, xgb.DMatrix(X, Y), 6)
    booster.save_model(tmp_path / "m.ubj")
    (tmp_path / "m.ubj").rename(tmp_path / "m")
    (tmp_path / "rows.csv").write_text("0.5,-9,1\n")
    spec = pb.PredictionSpec(steps=[step("xgboost", "m", predict="margin", rounds="2", missing="-9")])
    derive(tmp_path, spec, None, tmp_path / "rows.csv", tmp_path / "to.json")
    (case,) = json.loads((tmp_path / "to.json").read_text())["cases"]
    matrix = xgb.DMatrix([[0.5, np.nan, 1]])
    assert case["outputs"][0]["data"] == booster.predict(matrix, output_margin=True, iteration_range=(0, 2)).tolist()
    spec.steps[0].options["rounds"] = "many"
    with pytest.raises(LoadError, match="option 'rounds' must be a whole number from 1 to 6"):
        derive(tmp_path, spec, None, None, tmp_path / "to.json")


def test_what_is_said_whole_needs_no_trial(tmp_path: Path) -> None:
    """An encoder that refuses what it has not seen refuses the zeros that it would be tried with."""
    encoder = OneHotEncoder(sparse_output=False).fit(np.array([["red"], ["blue"]], object))
    skops.io.dump(encoder, tmp_path / "m")
    taken = [pb.TensorSpec(name="colour", datatype="BYTES", shape=[-1, 1])]
    with pytest.raises(LoadError, match=r"scikit-learn .* refuses the golden rows, or zeros where there are none"):
        found(tmp_path, "sklearn", inputs=taken)
    (tmp_path / "rows.csv").write_text("red\n")
    assert words(found(tmp_path, "sklearn", "rows.csv", inputs=taken)[0].outputs) == ["transformed FP64 [-1, 2] "]
    given = [pb.TensorSpec(name="one_hot", datatype="FP64", shape=[-1, 2])]
    spec, _ = found(tmp_path, "sklearn", inputs=taken, outputs=given)
    assert dict(spec.steps[0].options) == {"transform": "one_hot"}
