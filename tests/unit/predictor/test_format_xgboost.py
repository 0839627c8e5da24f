"""XGBoost in a predictor gives what XGBoost gives, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from services.predictor import warmup
from services.predictor.formats import LoadError
from services.predictor.port import ModelError
from tests.unit.predictor.specs import load, spec, step

FEATURES = 4
RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(200, FEATURES)).astype(np.float32)
X[:, 0] = RANDOM.integers(0, 5, 200)
Y = (X[:, 0] + X[:, 1] > 2).astype(np.float32)
TYPES = ["c", "q", "q", "q"]


def _matrix(x: np.ndarray, y: np.ndarray | None = None) -> xgb.DMatrix:
    return xgb.DMatrix(x, y, feature_types=TYPES, enable_categorical=True, nthread=1)


def _train(objective: str = "binary:logistic", **params: Any) -> xgb.Booster:
    labels = np.round(X[:, 0]) % 3 if "multi" in objective else Y
    return xgb.train({"objective": objective, "nthread": 1, "max_depth": 3, **params}, _matrix(X, labels), 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("xgboost")
    _train().save_model(made / "model.ubj")
    _train().save_model(made / "model.json")
    _train("multi:softprob", num_class=3).save_model(made / "three.ubj")
    (made / "broken.ubj").write_bytes(b"{not a model")
    return made


@pytest.mark.parametrize("path", ["model.ubj", "model.json"])
def test_equal_to_xgboost_to_the_bit(folder: Path, path: str) -> None:
    model = load(folder, spec(step("xgboost", path), inputs="x FP32 -1 4", outputs="p FP32 -1"))
    assert model.native
    native = xgb.Booster(model_file=folder / path)

    @given(hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.just(FEATURES)), elements=_ELEMENTS))
    def check(x: np.ndarray) -> None:
        x.flags.writeable = False
        got = model.run({"x": x})
        assert set(got) == {"p"}
        assert got["p"].tobytes() == native.predict(_matrix(x)).tobytes()

    check()
    model.close()


_ELEMENTS = st.one_of(st.floats(-1e6, 1e6, width=32), st.just(np.float32("nan")), st.integers(-3, 1000).map(np.float32))
"""Missing values, and categories that were never trained, among them negative ones."""


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinity_is_a_number_to_predictions_and_refused_by_contributions(folder: Path, bad: float) -> None:
    declared = step("xgboost", "model.ubj", contributions="why")
    model = load(folder, spec(declared, inputs="x FP32 -1 4", outputs="p FP32 -1, why FP32 -1 5"))
    native = xgb.Booster(model_file=folder / "model.ubj")
    x = X[:3].copy()
    x[1, 2] = bad
    assert model.run({"x": x})["p"].tobytes() == native.inplace_predict(x).tobytes()
    with pytest.raises(xgb.core.XGBoostError, match="inf"):
        native.predict(_matrix(x), pred_contribs=True)
    with pytest.raises(ModelError) as refused:
        model.run({"x": x}, frozenset(["why"]))
    assert str(refused.value) == "input 'x': a value is infinite or too large"
    assert refused.value.tensor == "x"


def test_doubles_are_read_as_xgboost_reads_them(folder: Path) -> None:
    model = load(folder, spec(step("xgboost", "model.ubj"), inputs="x FP64 -1 4", outputs="p FP32 -1 1"))
    x = X.astype(np.float64)
    got = model.run({"x": x})["p"]
    assert got.shape == (200, 1)
    assert got.tobytes() == xgb.Booster(model_file=folder / "model.ubj").predict(_matrix(x)).tobytes()


def test_margins_first_rounds_and_a_number_for_missing(folder: Path) -> None:
    options = {"predict": "margin", "rounds": "3", "missing": "-7"}
    model = load(folder, spec(step("xgboost", "model.ubj", **options), inputs="x FP32 -1 4", outputs="p FP32 -1"))
    x = X.copy()
    x[::2, 1] = -7
    native = xgb.Booster(model_file=folder / "model.ubj")
    data = xgb.DMatrix(x, missing=-7, feature_types=TYPES, enable_categorical=True)
    expected = native.predict(data, output_margin=True, iteration_range=(0, 3))
    assert model.run({"x": x})["p"].tobytes() == expected.tobytes()


def test_contributions_only_for_who_asks_and_equal_to_xgboost(folder: Path) -> None:
    declared = spec(
        step("xgboost", "three.ubj", contributions="why"),
        inputs="x FP32 -1 4",
        outputs="p FP32 -1 3, why FP32 -1 3 5",
    )
    model = load(folder, declared)
    assert [tensor.on_request for tensor in model.signature.outputs] == [False, True]
    assert set(model.run({"x": X})) == {"p"}
    why = model.run({"x": X}, frozenset(["why"]))
    assert set(why) == {"why"}
    native = xgb.Booster(model_file=folder / "three.ubj")
    assert why["why"].tobytes() == native.predict(_matrix(X), pred_contribs=True).tobytes()
    # What SHAP values are: they add up to the margin.
    np.testing.assert_allclose(why["why"].sum(-1), native.predict(_matrix(X), output_margin=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "inputs", "outputs", "said"),
    [
        ({"path": "absent.ubj"}, "x FP32 -1 4", "p FP32 -1", "there is no artifact 'absent.ubj'"),
        ({"path": "broken.ubj"}, "x FP32 -1 4", "p FP32 -1", "no XGBoost model"),
        ({"threads": "0"}, "x FP32 -1 4", "p FP32 -1", "option 'threads' must be a whole number from 1 to 64"),
        ({"rounds": "9"}, "x FP32 -1 4", "p FP32 -1", "option 'rounds' must be a whole number from 1 to 8"),
        ({"depth": "1"}, "x FP32 -1 4", "p FP32 -1", "unknown option 'depth'"),
        ({}, "x FP32 -1 5", "p FP32 -1", "input 'x': dimension 1 is 5; the model has 4 features"),
        ({}, "x INT64 -1 4", "p FP32 -1", "input 'x' is INT64"),
        ({}, "x FP32 -1", "p FP32 -1", "input 'x' must have two dimensions"),
        ({}, "x FP32 -1 4, y FP32 -1 4", "p FP32 -1", "name one by option 'input'"),
        ({}, "x FP32 -1 4", "p FP64 -1", "output 'p' is declared FP64; the model gives FP32"),
        ({}, "x FP32 -1 4", "p FP32 -1, q FP32 -1", "option 'output': name one of 'p', 'q'"),
        ({"output": "p"}, "x FP32 -1 4", "p FP32 -1, q FP32 -1", "no step gives the output 'q'"),
        ({"contributions": "w"}, "x FP32 -1 4", "p FP32 -1", "option 'contributions': 'w' is no output"),
    ],
)
def test_what_does_not_fit_its_declaration_is_not_loaded(
    folder: Path, options: dict[str, str], inputs: str, outputs: str, said: str
) -> None:
    path = options.pop("path", "model.ubj")
    with pytest.raises(LoadError) as refused:
        load(folder, spec(step("xgboost", path, **options), inputs=inputs, outputs=outputs))
    assert said in str(refused.value)


def test_an_output_of_another_shape_is_found_by_warming_up(folder: Path) -> None:
    model = load(folder, spec(step("xgboost", "three.ubj"), inputs="x FP32 -1 4", outputs="p FP32 -1 2"))
    with pytest.raises(LoadError, match=r"output 'p' is declared \[-1, 2\]; of 1 rows the model gives \[1, 3\]"):
        warmup.samples(model)
