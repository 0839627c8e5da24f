"""scikit-learn in a predictor gives what scikit-learn gives, and types that are not trusted are refused by name."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from services.predictor import warmup
from services.predictor.formats import LoadError
from services.predictor.port import ModelError, Tensors
from tests.unit.predictor.specs import load, spec, step

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(120, 3))
Y = (X[:, 0] > 0).astype(np.int64)
TEXTS = ["red apple", "green pear", "red cherry", "green grass"] * 3
KINDS = ["fruit", "fruit", "fruit", "plant"] * 3
NUMBERS = {"inputs": "x FP64 -1 3", "outputs": "label INT64 -1, p FP64 -1 2"}


def _saved(estimator: Any, folder: Path, name: str = "model.skops") -> Any:
    skops.io.dump(estimator, folder / name)
    return estimator


@pytest.mark.parametrize(
    "estimator",
    [
        make_pipeline(StandardScaler(), LogisticRegression()),
        RandomForestClassifier(5, n_jobs=-1, random_state=0),
        HistGradientBoostingClassifier(max_iter=5),
    ],
    ids=["pipeline", "forest", "boosting"],
)
def test_equal_to_scikit_learn_to_the_bit(tmp_path: Path, estimator: Any) -> None:
    native = _saved(estimator.fit(X, Y), tmp_path)
    declared = step("sklearn", "model.skops", predict="label", predict_proba="p")
    model = load(tmp_path, spec(declared, **NUMBERS))
    assert not model.native
    x = RANDOM.normal(size=(50, 3))
    got = model.run({"x": x})
    assert got["label"].tobytes() == native.predict(x).tobytes()
    assert got["p"].tobytes() == native.predict_proba(x).tobytes()
    assert set(model.run({"x": x}, frozenset(["p"]))) == {"p"}
    warmup.samples(model, {"x": x}, budget=0)


def test_texts_and_labels_of_text(tmp_path: Path) -> None:
    native = _saved(make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, KINDS), tmp_path)
    model = load(tmp_path, spec(step("sklearn", "model.skops"), inputs="t BYTES -1", outputs="kind BYTES -1"))
    texts = ["red grass", "", "ünseen"]
    got = model.run({"t": np.array([text.encode() for text in texts], object)})["kind"]
    assert got.tolist() == [label.encode() for label in native.predict(texts)]
    with pytest.raises(ModelError, match="input 't': an element is not UTF-8"):
        model.run({"t": np.array([b"\xff"], object)})


def _categories() -> Tensors:
    return {"c": np.array([[b"a"], [b"secret"]], object)}


def test_an_unseen_category_is_handled_as_the_encoder_says(tmp_path: Path) -> None:
    seen = np.array([["a"], ["b"]] * 3, object)
    for action in ("ignore", "error"):
        encoder = OneHotEncoder(handle_unknown=action)
        _saved(make_pipeline(encoder, LogisticRegression()).fit(seen, [0, 1] * 3), tmp_path, f"{action}.skops")
    declared = {"inputs": "c BYTES -1 1", "outputs": "label INT64 -1"}
    assert load(tmp_path, spec(step("sklearn", "ignore.skops"), **declared)).run(_categories())["label"].shape == (2,)
    refusing = load(tmp_path, spec(step("sklearn", "error.skops"), **declared))
    with pytest.raises(ModelError) as refused:
        refusing.run(_categories())
    assert str(refused.value) == "input 'c': refused (ValueError)"


@pytest.mark.parametrize(("bad", "said"), [(np.nan, "Input X contains NaN."), (np.inf, "Input X contains infinity")])
def test_what_scikit_learn_refuses_is_refused(tmp_path: Path, bad: float, said: str) -> None:
    native = _saved(LogisticRegression().fit(X, Y), tmp_path)
    model = load(tmp_path, spec(step("sklearn", "model.skops"), inputs="x FP64 -1 3", outputs="label INT64 -1"))
    x = np.array([[1.0, bad, 2.0]])
    with pytest.raises(ValueError, match=said):
        native.predict(x)
    with pytest.raises(ModelError, match=said) as refused:
        model.run({"x": x})
    assert refused.value.tensor == "x"


class Foreign:
    """A type that nobody trusts."""

    def __init__(self) -> None:
        raise AssertionError("it must never be made")


def test_types_that_are_not_trusted_are_refused_by_name(tmp_path: Path) -> None:
    _saved(make_pipeline(FunctionTransformer(partial), LogisticRegression()), tmp_path, "partial.skops")
    foreign = LogisticRegression().fit(X, Y)
    foreign.extra = Foreign.__new__(Foreign)
    _saved(foreign, tmp_path, "foreign.skops")
    with pytest.raises(LoadError, match=r"types that are not trusted: .*Foreign"):
        load(tmp_path, spec(step("sklearn", "foreign.skops"), **NUMBERS))
    with pytest.raises(LoadError, match=r"types that are not trusted: functools.partial"):
        load(tmp_path, spec(step("sklearn", "partial.skops"), **NUMBERS))


def test_what_is_no_skops_file(tmp_path: Path) -> None:
    (tmp_path / "broken.skops").write_bytes(b"PK no zip")
    with zipfile.ZipFile(tmp_path / "empty.skops", "w"):
        pass
    _saved({"a": 1}, tmp_path, "dict.skops")
    for path, said in (("broken", "no skops file"), ("empty", "no skops file"), ("dict", "dict is no estimator")):
        with pytest.raises(LoadError, match=said):
            load(tmp_path, spec(step("sklearn", f"{path}.skops"), **NUMBERS))


@pytest.mark.parametrize(
    ("options", "inputs", "outputs", "said"),
    [
        ({}, "x FP64 -1 4", "label INT64 -1", "input 'x': dimension 1 is 4; the model has 3 features"),
        ({}, "x BF16 -1 3", "label INT64 -1", "scikit-learn takes no BF16"),
        ({}, "x FP64 -1 3", "label INT64 -1, p FP64 -1 2", "say which method gives which output"),
        ({"predict": "q"}, "x FP64 -1 3", "label INT64 -1", "'q' is no output of the version"),
        ({"transform": "label"}, "x FP64 -1 3", "label INT64 -1", "LogisticRegression has no method 'transform'"),
        ({"trusted": "os.system"}, "x FP64 -1 3", "label INT64 -1", "unknown option 'trusted'"),
    ],
)
def test_what_does_not_fit_its_declaration_is_not_loaded(
    tmp_path: Path, options: dict[str, str], inputs: str, outputs: str, said: str
) -> None:
    _saved(LogisticRegression().fit(X, Y), tmp_path)
    with pytest.raises(LoadError) as refused:
        load(tmp_path, spec(step("sklearn", "model.skops", **options), inputs=inputs, outputs=outputs))
    assert said in str(refused.value)
