"""Models of trees that are no trees are not loaded: their libraries would hang on them or read outside of memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
import xgboost as xgb

from services.predictor.formats import LoadError, sound, ubjson
from tests.unit.predictor.specs import load, spec, step

X = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
X[:, 0] = np.random.default_rng(1).integers(0, 6, 300)
Y = X[:, 0] % 3
TYPES = ["c", "q", "q", "q"]


def _xgboost(**params: Any) -> xgb.Booster:
    data = xgb.DMatrix(X, Y, feature_types=TYPES, enable_categorical=True)
    return xgb.train({"objective": "multi:softprob", "num_class": 3, "max_depth": 3, **params}, data, 4)


@pytest.mark.parametrize("booster", ["gbtree", "dart"])
def test_what_xgboost_saves_is_sound_and_read_as_it_says(booster: str) -> None:
    model = _xgboost(booster=booster)
    saved = bytes(model.save_raw("ubj"))
    sound.check_xgboost(saved)
    trees = lambda learner: (  # noqa: E731
        learner["gradient_booster"].get("gbtree", learner["gradient_booster"])["model"]["trees"]
    )
    ours = trees(ubjson.read(saved)["learner"])
    theirs = trees(json.loads(bytes(model.save_raw("json")))["learner"])
    for own, their in zip(ours, theirs, strict=True):
        for name in ("left_children", "split_indices", "categories", "categories_segments", "split_type"):
            assert np.asarray(own[name]).tolist() == their[name]


def _tree(document: dict[str, Any], **values: Any) -> None:
    """Values of the root of the first tree."""
    tree = document["learner"]["gradient_booster"]["model"]["trees"][0]
    for name, value in values.items():
        tree[name][0] = value


XGBOOST: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (lambda d: _tree(d, left_children=0), "tree 0: a child outside of the tree"),
    (lambda d: _tree(d, left_children=2, right_children=2), "tree 0: a node with two parents"),
    (lambda d: _tree(d, right_children=10**8), "tree 0: a child outside of the tree"),
    (lambda d: _tree(d, split_indices=10**8), "tree 0: a feature that the model does not have"),
    (
        lambda d: d["learner"]["gradient_booster"]["model"]["tree_info"].__setitem__(0, 10**6),
        "the numbers of classes, rounds and trees do not agree",
    ),
]


@pytest.mark.parametrize(("change", "said"), XGBOOST)
def test_an_xgboost_model_that_is_no_tree(tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str) -> None:
    document = json.loads(bytes(_xgboost().save_raw("json")))
    change(document)
    (tmp_path / "model.json").write_text(json.dumps(document))
    with pytest.raises(LoadError) as refused:
        load(tmp_path, spec(step("xgboost", "model.json"), inputs="x FP32 -1 4", outputs="p FP32 -1 3"))
    assert said in str(refused.value)


def test_an_xgboost_model_of_lines_is_refused_by_name(tmp_path: Path) -> None:
    model = xgb.train({"booster": "gblinear", "updater": "coord_descent"}, xgb.DMatrix(X, Y), 2)
    model.save_model(tmp_path / "model.ubj")
    with pytest.raises(LoadError, match="booster 'gblinear': only trees are read"):
        load(tmp_path, spec(step("xgboost", "model.ubj"), inputs="x FP32 -1 4", outputs="p FP32 -1"))


@pytest.mark.parametrize("data", [b"", b"{", b"[$", b"[$l#L", b"{L", b"S", b"x" * 9, b"[" * 5000])
def test_what_is_no_ubjson(data: bytes) -> None:
    with pytest.raises(LoadError, match="no model of trees"):
        sound.check_xgboost(data)


def _lightgbm() -> str:
    params = {"objective": "multiclass", "num_class": 3, "verbosity": -1, "num_leaves": 6, "min_data_per_group": 1}
    return lgb.train(params, lgb.Dataset(X, Y, categorical_feature=[0]), 3).model_to_string()


def test_what_lightgbm_saves_is_sound() -> None:
    text = _lightgbm()
    assert "\ncat_threshold=" in text
    sound.check_lightgbm(text)
    one = lgb.train({"objective": "regression", "verbosity": -1}, lgb.Dataset(X[:5], Y[:5]), 2)
    assert "num_leaves=1\n" in one.model_to_string()
    sound.check_lightgbm(one.model_to_string())


def _first(name: str, value: str) -> Callable[[str], str]:
    """Another first value in the first line of that name, as long as it was: trees stay where they are."""
    return lambda text: re.sub(
        rf"^{name}=(\S+)", lambda found: f"{name}={value.rjust(len(found[1]))}", text, count=1, flags=re.M
    )


LIGHTGBM: list[tuple[Callable[[str], str], str]] = [
    (_first("left_child", "0"), "tree 0: a child outside of the tree"),
    (_first("left_child", "9"), "tree 0: a child outside of the tree"),
    (_first("left_child", "2"), "tree 0: a node with two parents"),
    (_first("split_feature", "9"), "tree 0: a feature that the model does not have"),
    (_first("num_cat", "9"), "tree 0: its categories do not agree"),
    (_first("num_leaves", "9"), "tree 0: its leaves do not agree"),
    (_first("num_class", "9"), "the numbers of classes and trees do not agree"),
    (lambda text: text.replace("num_class:3", "num_class:9"), "the numbers of classes and trees do not agree"),
    (lambda text: text.replace("tree_sizes=", "tree_sizes=1"), "trees are not where 'tree_sizes' says"),
    (lambda text: text.replace("tree_sizes=", "tree_heights="), "no model of trees: KeyError: 'tree_sizes'"),
    (lambda text: text.replace("shrinkage=", "num_cat=0\n=", 1), "trees are not where"),
    (lambda text: text.replace("is_linear=0", "is_linear=1", 1), "tree 0: linear trees are not read"),
    (lambda text: text.replace("\nversion", "\nnum_class=3\nversion"), "'num_class' is said twice"),
]


@pytest.mark.parametrize(("change", "said"), LIGHTGBM)
def test_a_lightgbm_model_that_is_no_tree(tmp_path: Path, change: Callable[[str], str], said: str) -> None:
    text = _lightgbm()
    changed = change(text)
    assert changed != text
    (tmp_path / "model.txt").write_text(changed)
    with pytest.raises(LoadError) as refused:
        load(tmp_path, spec(step("lightgbm", "model.txt"), inputs="x FP32 -1 4", outputs="p FP64 -1 3"))
    assert said in str(refused.value)
