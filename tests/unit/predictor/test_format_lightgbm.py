"""LightGBM in a predictor gives what LightGBM gives, to the bit."""

from __future__ import annotations

from pathlib import Path

import lightgbm as lgb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from services.predictor.formats import LoadError
from services.predictor.port import Model
from tests.unit.predictor.specs import load, spec, step

FEATURES = 4
RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(300, FEATURES)).astype(np.float32)
X[:, 0] = RANDOM.integers(0, 5, 300)


def _train(objective: str, classes: int = 1) -> lgb.Booster:
    params = {"objective": objective, "num_threads": 1, "verbosity": -1, "num_class": classes, "min_data_per_group": 1}
    labels = X[:, 0] % 3 if classes > 1 else X[:, 0] + X[:, 1] > 2
    return lgb.train(params, lgb.Dataset(X, labels, categorical_feature=[0]), 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lightgbm")
    _train("binary").save_model(made / "model.txt")
    _train("multiclass", 3).save_model(made / "three.txt")
    (made / "broken.txt").write_text("tree\nno model\n")
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder, spec(step("lightgbm", "model.txt"), inputs="x FP32 -1 4", outputs="p FP64 -1"))


@pytest.fixture(scope="module")
def native(folder: Path) -> lgb.Booster:
    return lgb.Booster(model_file=folder / "model.txt")


@given(x=hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.just(FEATURES)), elements=st.floats(width=32)))
def test_equal_to_lightgbm_to_the_bit_with_missing_infinite_and_unseen_values(
    model: Model, native: lgb.Booster, x: np.ndarray
) -> None:
    assert model.native
    expected = native.predict(x, num_threads=1)
    x.flags.writeable = False
    assert model.run({"x": x})["p"].tobytes() == np.asarray(expected).tobytes()


@pytest.mark.parametrize("category", [0, 4, 5, 1000, -1, np.nan, np.inf])
def test_categories_seen_and_unseen(model: Model, native: lgb.Booster, category: float) -> None:
    x = X[:20].copy()
    x[:, 0] = category
    assert model.run({"x": x})["p"].tobytes() == np.asarray(native.predict(x)).tobytes()


def test_margins_of_the_first_rounds_and_doubles(folder: Path, native: lgb.Booster) -> None:
    options = {"predict": "margin", "rounds": "2"}
    model = load(folder, spec(step("lightgbm", "model.txt", **options), inputs="x FP64 -1 4", outputs="p FP64 -1"))
    x = X.astype(np.float64)
    expected = np.asarray(native.predict(x, raw_score=True, num_iteration=2))
    assert model.run({"x": x})["p"].tobytes() == expected.tobytes()


def test_contributions_add_up_to_the_margin(folder: Path) -> None:
    declared = step("lightgbm", "three.txt", contributions="why")
    model = load(folder, spec(declared, inputs="x FP32 -1 4", outputs="p FP64 -1 3, why FP64 -1 3 5"))
    assert set(model.run({"x": X})) == {"p"}
    got = model.run({"x": X}, frozenset(["p", "why"]))
    native = lgb.Booster(model_file=folder / "three.txt")
    assert got["p"].tobytes() == np.asarray(native.predict(X)).tobytes()
    assert got["why"].tobytes() == np.asarray(native.predict(X, pred_contrib=True)).tobytes()
    np.testing.assert_allclose(got["why"].sum(-1), native.predict(X, raw_score=True), rtol=1e-9)


@pytest.mark.parametrize(
    ("path", "inputs", "outputs", "said"),
    [
        ("broken.txt", "x FP32 -1 4", "p FP64 -1", "no model of trees"),
        ("model.txt", "x FP32 -1 3", "p FP64 -1", "input 'x': dimension 1 is 3; the model has 4 features"),
        ("model.txt", "x FP32 -1 4", "p FP32 -1", "output 'p' is declared FP32; the model gives FP64"),
    ],
)
def test_what_does_not_fit_its_declaration_is_not_loaded(
    folder: Path, path: str, inputs: str, outputs: str, said: str
) -> None:
    with pytest.raises(LoadError) as refused:
        load(folder, spec(step("lightgbm", path), inputs=inputs, outputs=outputs))
    assert said in str(refused.value)
