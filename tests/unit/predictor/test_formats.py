"""Chains of steps, files that are pickles, golden rows and warm-up."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import skops.io
import xgboost as xgb
from google.protobuf import json_format
from onnx import TensorProto, helper
from sklearn.preprocessing import StandardScaler
from weir.registry.v1 import registry_pb2 as pb

from services.predictor import golden, warmup
from services.predictor.formats import LoadError
from services.predictor.port import ModelError, Signature, Tensor, Tensors
from tests.unit.predictor.specs import load, spec, step

X = np.random.default_rng(2).normal(3, 2, size=(100, 3)).astype(np.float32)
Y = (X.sum(1) > 9).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scaler, trees over what it gives, and a threshold over what they give."""
    made = tmp_path_factory.mktemp("chain")
    scaler = StandardScaler().fit(X)
    skops.io.dump(scaler, made / "scale.skops")
    xgb.train({"objective": "binary:logistic"}, xgb.DMatrix(scaler.transform(X), Y), 5).save_model(made / "trees.ubj")
    graph = helper.make_graph(
        [helper.make_node("Greater", ["p", "limit"], ["yes"])],
        "g",
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["rows"])],
        [helper.make_tensor_value_info("yes", TensorProto.BOOL, ["rows"])],
        [onnx.numpy_helper.from_array(np.float32([0.5]), "limit")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), made / "threshold.onnx"
    )
    return made


CHAIN = (
    step("sklearn", "scale.skops", transform="scaled"),
    step("xgboost", "trees.ubj", input="scaled", output="p"),
    step("onnx", "threshold.onnx"),
)


def test_a_chain_is_its_steps_one_after_the_other(folder: Path) -> None:
    model = load(folder, spec(*CHAIN, inputs="x FP32 -1 3", outputs="yes BOOL -1, p FP32 -1"))
    assert not model.native
    scaled = skops.io.load(folder / "scale.skops").transform(X)
    p = xgb.Booster(model_file=folder / "trees.ubj").inplace_predict(scaled)
    got = model.run({"x": X})
    assert got["p"].tobytes() == p.tobytes()
    assert got["yes"].tolist() == (p > 0.5).tolist()
    assert set(model.run({"x": X}, frozenset(["yes"]))) == {"yes"}
    assert {rows for rows, _ in warmup.samples(model)} == {1, 2, 4, 8, 16, 32, 64}
    model.close()


def test_a_chain_computes_only_what_somebody_reads(folder: Path) -> None:
    """The trees alone are enough for their own output: what comes after is not asked for anything."""
    model = load(folder, spec(*CHAIN, inputs="x FP32 -1 3", outputs="yes BOOL -1, p FP32 -1"))
    plan = model._plan(frozenset(["p"]))
    assert plan == (frozenset(["scaled"]), frozenset(["p"]), frozenset())
    assert set(model.run({"x": X}, frozenset(["p"]))) == {"p"}


@pytest.mark.parametrize(
    ("steps", "outputs", "said"),
    [
        ((), "p FP32 -1", "the version declares no steps"),
        ((step("cobol", "trees.ubj"),), "p FP32 -1", "step 1 (cobol): the format is not known"),
        (CHAIN[:2], "q FP32 -1", "step 2 (xgboost): option 'output': name one of 'q'"),
        (CHAIN[::2], "yes BOOL -1", "step 2 (onnx): the graph takes an input 'p', which is not there"),
        ((step("xgboost", "../trees.ubj"),), "p FP32 -1", "there is no artifact '../trees.ubj'"),
        ((step("xgboost", "trees.ubj"),), "p FP33 -1", "tensor 'p': datatype 'FP33' is not known"),
    ],
)
def test_a_chain_that_does_not_fit_together_is_not_loaded(
    folder: Path, steps: tuple[Any, ...], outputs: str, said: str
) -> None:
    (folder / "sub").mkdir(exist_ok=True)
    with pytest.raises(LoadError) as refused:
        load(folder / "sub" if "../" in said else folder, spec(*steps, inputs="x FP32 -1 3", outputs=outputs))
    assert said in str(refused.value)


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("format", ["onnx", "xgboost", "lightgbm", "sklearn", "torch"])
@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "model.pt", "model.ubj"])
@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["bare", "gzip"])
def test_a_pickle_is_refused_by_name_and_never_read(
    tmp_path: Path, format: str, name: str, protocol: int, packed: Callable[[bytes], bytes]
) -> None:
    mark = tmp_path / "mark"
    (tmp_path / name).write_bytes(packed(pickle.dumps(Touch(mark), protocol=protocol)))
    with pytest.raises(LoadError, match=f"'{name}' is a pickle, and a pickle runs code where it is read"):
        load(tmp_path, spec(step(format, name), inputs="x FP32 -1 3", outputs="p FP32 -1"))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("format", "library"),
    [
        ("onnx", "onnxruntime"),
        ("xgboost", "xgboost"),
        ("lightgbm", "lightgbm"),
        ("sklearn", "skops"),
        ("torch", "torch"),
    ],
)
def test_a_library_that_an_image_leaves_out_is_told_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, library: str
) -> None:
    (tmp_path / "model").write_bytes(b"whatever")
    monkeypatch.delitem(sys.modules, f"services.predictor.formats.{format}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.io", None)
    with pytest.raises(LoadError, match=rf"^step 1 \({format}\): this predictor has no {library}: "):
        load(tmp_path, spec(step(format, "model"), inputs="x FP32 -1 3", outputs="p FP32 -1"))


class Sum:
    """A model of one line, with the faults that the self-test is for."""

    signature = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("s", "FP32", (-1,)), Tensor("n", "INT64", (-1,))), 8)
    native = True

    def __init__(self, *, offset: float = 0.0, over_rows: bool = False, refuses: int = 99) -> None:
        self.offset, self.over_rows, self.refuses, self.ran = offset, over_rows, refuses, list[int]()

    def run(self, inputs: Tensors, outputs: frozenset[str] | None = None) -> dict[str, np.ndarray]:
        x = inputs["x"]
        self.ran.append(len(x))
        if len(x) >= self.refuses:
            raise ModelError("too many")
        total = (x.sum(1) + np.float32(self.offset)).astype(np.float32)
        if self.over_rows:
            total = total / total.sum()
        return {"s": total, "n": np.zeros(len(x), np.int64)}

    def close(self) -> None:
        pass


def _golden(**case: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, float("nan")]]}
    result = {"name": "s", "datatype": "FP32", "shape": [2], "data": [3, float("nan")]}
    return json.dumps({"cases": [{"inputs": [tensor], "outputs": [result], **case}]}).encode()


def test_golden_rows_hold_to_the_bit_or_as_exactly_as_they_say() -> None:
    inputs = golden.check(Sum(), _golden())
    assert inputs["x"].shape == (2, 2)
    with pytest.raises(LoadError, match=r"golden case 0, output 's': differs at \[0\] \(1 of 2 elements\)"):
        golden.check(Sum(offset=1e-6), _golden())
    golden.check(Sum(offset=1e-6), _golden(rtol=1e-5))
    golden.check(Sum(offset=1e-6), _golden(atol=1e-5))


def test_a_row_that_knows_of_its_neighbours_is_found() -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}
    s = {"name": "s", "datatype": "FP32", "shape": [2], "data": [0.3, 0.7]}
    with pytest.raises(LoadError, match="output 's': row 0 depends on the rows beside it"):
        golden.check(Sum(over_rows=True), _golden(inputs=[x], outputs=[s], rtol=1e-5))


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"inputs": []}, "golden case 0: 'x' is missing"),
        ({"outputs": []}, "golden case 0: outputs that the version does not have, or none"),
        ({"outputs": [{"name": "z"}]}, "golden case 0: outputs that the version does not have, or none"),
        ({"inputs": 1}, "golden rows cannot be read: TypeError"),
        ({"rtol": "much"}, "golden rows cannot be read: ValueError"),
        ({"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [1]}]}, "'x': is 'FP64', not FP32"),
        (
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1]}]},
            "golden rows cannot be read: ValueError",
        ),
        (
            {"outputs": [{"name": "s", "datatype": "FP32", "shape": [1], "data": [1]}]},
            "output 's': float32 [2] instead of float32 [1]",
        ),
    ],
)
def test_golden_rows_that_are_none(case: dict[str, Any], said: str) -> None:
    with pytest.raises(LoadError) as refused:
        golden.check(Sum(), _golden(**case))
    assert said in str(refused.value)


def test_golden_rows_that_are_no_json() -> None:
    for text in (b"", b"[]", b'{"cases": []}', b"[" * 100_000, b"\xff"):
        with pytest.raises(LoadError, match="golden rows"):
            golden.check(Sum(), text)


def test_golden_bytes_and_halves() -> None:
    assert golden._filled(["a", "ü"], "BYTES").tolist() == [b"a", "ü".encode()]
    assert golden._filled([1.0, -2.0], "BF16").tolist() == [0x3F80, 0xC000]


def test_buckets_of_rows() -> None:
    assert warmup.buckets(0) == [1]
    assert warmup.buckets(1) == [1]
    assert warmup.buckets(2) == [1, 2]
    assert warmup.buckets(48) == [1, 2, 4, 8, 16, 32, 48]
    assert warmup.buckets(64) == [1, 2, 4, 8, 16, 32, 64]


def test_warming_up_measures_every_number_of_rows_until_the_time_is_spent() -> None:
    time = iter(range(1000))
    model = Sum()
    found = warmup.samples(model, clock=lambda: float(next(time)), budget=1e9)
    assert [rows for rows, _ in found] == [rows for rows in (1, 2, 4, 8) for _ in range(warmup.REPEATS)]
    assert {seconds for _, seconds in found} == {1.0}
    assert model.ran.count(8) == warmup.REPEATS + 1
    assert {rows for rows, _ in warmup.samples(Sum(), clock=lambda: float(next(time)), budget=15)} == {1, 2}


def test_warming_up_repeats_golden_rows() -> None:
    like = {"x": np.float32([[1, 2], [3, 4], [5, 6]])}
    assert warmup.sample(Sum.signature, 4, like)["x"].tolist() == [[1, 2], [3, 4], [5, 6], [1, 2]]
    whole = Signature(Sum.signature.inputs, Sum.signature.outputs, 0)
    assert warmup.sample(whole, 1, like)["x"] is like["x"]
    texts = Signature((Tensor("t", "BYTES", (-1, -1)),), (), 4)
    assert warmup.sample(texts, 2)["t"].tolist() == [[b""], [b""]]


def test_a_model_that_refuses_the_rows_it_declares_is_not_served() -> None:
    with pytest.raises(LoadError, match="the model refuses 4 rows to warm up with: too many"):
        warmup.samples(Sum(refuses=3))


@pytest.mark.parametrize(
    "name", ["cancer-gbdt", "cancer-linear", "digits-torch", "digits-int8", "diabetes-lgbm", "wine-sklearn"]
)
def test_demo_models_pass_their_own_test(name: str) -> None:
    folder = Path(__file__).parents[3] / "models" / "demo" / name
    said = json_format.ParseDict(json.loads((folder / "manifest.json").read_text())["prediction"], pb.PredictionSpec())
    model = load(folder, said)
    rows = golden.check(model, (folder / said.golden).read_bytes())
    assert warmup.samples(model, rows, budget=0)
