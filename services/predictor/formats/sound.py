"""Whether models of trees are trees: their libraries do not look. A child that is its own parent is followed for ever,
one outside of the tree into whatever lies there; and both run in the server's process, which is everybody's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from services.predictor.formats import ubjson
from services.predictor.formats.step import LoadError

_PARAMETERS = "learner_model_param"
_CATEGORICAL = 1
"""XGBoost's `split_type`; LightGBM's first bit of `decision_type`."""


def check_nodes(left: np.ndarray, right: np.ndarray, nodes: int, what: str) -> None:
    """Every node but the first is the child of exactly one: with that, every way down ends.

    :param left: the left child of each inner node.
    :raises LoadError: one is not.
    """
    children = np.concatenate([left, right])
    if len(children) and not (children.min() >= 1 and children.max() < nodes):
        raise LoadError(f"{what}: a child outside of the tree")
    if (np.bincount(children, minlength=nodes)[1:] > 1).any():
        raise LoadError(f"{what}: a node with two parents")


def check_xgboost(saved: bytes) -> None:
    """A model as XGBoost itself saves it (UBJSON), so that nothing is read otherwise than XGBoost did.

    :raises LoadError: a tree that is none, or numbers of classes, features and trees that do not agree.
    """
    try:
        learner = ubjson.read(saved)["learner"]
        booster = learner["gradient_booster"]
        if booster["name"] not in ("gbtree", "dart"):
            raise LoadError(f"booster {booster['name'][:32]!r}: only trees are read")
        model = booster["gbtree"]["model"] if booster["name"] == "dart" else booster["model"]
        trees, features = model["trees"], int(learner[_PARAMETERS]["num_feature"])
        _check_counts(learner, booster, model)
        for number, tree in enumerate(trees):
            _check_tree(tree, features, f"tree {number}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise LoadError(f"no model of trees: {type(error).__name__}") from None


def _check_counts(learner: Mapping[str, Any], booster: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    classes, targets = (int(learner[_PARAMETERS][name]) for name in ("num_class", "num_target"))
    groups, count = max(classes, targets, 1), len(model["trees"])
    info, rounds = np.asarray(model["tree_info"]), np.asarray(model["iteration_indptr"])
    sound = (
        len(info) == count == int(model["gbtree_model_param"]["num_trees"])
        and (not count or (info.min() >= 0 and info.max() < groups))
        and len(rounds) > 0
        and rounds[0] == 0
        and rounds[-1] == count
        and (np.diff(rounds) >= 0).all()
        and len(learner[_PARAMETERS]["base_score"].split(",")) in (1, groups)
        and len(booster.get("weight_drop", info)) == count
    )
    if not sound:
        raise LoadError("the numbers of classes, rounds and trees do not agree")


def _check_tree(tree: Mapping[str, Any], features: int, what: str) -> None:
    left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
    nodes = len(left)
    if int(tree["tree_param"]["size_leaf_vector"]) > 1:
        raise LoadError(f"{what}: leaves that hold vectors are not read")
    inner = left != -1
    if not nodes or not all(len(tree[name]) == nodes for name in ("right_children", "split_indices", "split_type")):
        raise LoadError(f"{what}: its nodes do not agree")
    split = np.asarray(tree["split_indices"])[inner]
    check_nodes(left[inner], right[inner], nodes, what)
    if len(split) and not (split.min() >= 0 and split.max() < features):
        raise LoadError(f"{what}: a feature that the model does not have")
    categorical = np.flatnonzero(inner & (np.asarray(tree["split_type"]) == _CATEGORICAL))
    first, size = np.asarray(tree["categories_segments"]), np.asarray(tree["categories_sizes"])
    ends = first + size
    if len(first) != len(tree["categories_nodes"]) or not np.isin(categorical, tree["categories_nodes"]).all():
        raise LoadError(f"{what}: its categories do not agree")
    if len(first) and not (first.min() >= 0 and size.min() >= 0 and ends.max() <= len(tree["categories"])):
        raise LoadError(f"{what}: its categories do not agree")


def check_lightgbm(text: str) -> None:
    """A model as in its file, before LightGBM reads it.

    :raises LoadError: a tree that is none, or numbers of classes, features and trees that do not agree.
    """
    head, *blocks = text.split("\nTree=")
    # Behind the last tree stand importances and parameters, which predictions do not read.
    blocks[-1:] = [blocks[-1].partition("\nend of trees")[0]] if blocks else []
    try:
        said = _lines(head)
        features, classes = int(said["max_feature_idx"]) + 1, int(said["num_class"])
        told = [int(word[10:]) for word in said["objective"].split() if word.startswith("num_class:")]
        sizes = [int(size) for size in said["tree_sizes"].split()]
        if int(said["num_tree_per_iteration"]) != classes or told not in ([], [classes]) or len(blocks) % classes:
            raise LoadError("the numbers of classes and trees do not agree")
        if sizes != [len(f"Tree={block}\n".encode()) for block in blocks]:
            raise LoadError("trees are not where 'tree_sizes' says")
        for number, block in enumerate(blocks):
            _check_block(_lines(f"Tree={block}"), features, f"tree {number}")
    except (KeyError, ValueError, ZeroDivisionError) as error:
        raise LoadError(f"no model of trees: {type(error).__name__}: {str(error)[:80]}") from None


def _check_block(tree: Mapping[str, str], features: int, what: str) -> None:
    leaves, categories = int(tree["num_leaves"]), int(tree["num_cat"])
    if int(tree.get("is_linear", "0")):
        raise LoadError(f"{what}: linear trees are not read")
    if len(tree["leaf_value"].split()) != leaves or leaves < 1:
        raise LoadError(f"{what}: its leaves do not agree")
    if leaves == 1:
        return
    left, right, split, kinds = (
        _whole(tree[n]) for n in ("left_child", "right_child", "split_feature", "decision_type")
    )
    limits = np.array(tree["threshold"].split(), np.float64)
    if not all(len(each) == leaves - 1 for each in (left, right, split, kinds, limits)):
        raise LoadError(f"{what}: its nodes do not agree")
    # Leaf n is written as ~n; here as the node behind all inner ones.
    left, right = (np.where(each < 0, leaves - 2 - each, each) for each in (left, right))
    check_nodes(left, right, 2 * leaves - 1, what)
    if split.min() < 0 or split.max() >= features:
        raise LoadError(f"{what}: a feature that the model does not have")
    chosen = limits[(kinds & _CATEGORICAL) > 0]
    bounds, words = _whole(tree.get("cat_boundaries", "0")), len(tree.get("cat_threshold", "").split())
    sound = len(bounds) == categories + 1 and bounds[0] == 0 and bounds[-1] <= words and (np.diff(bounds) >= 0).all()
    if not sound or (len(chosen) and not (chosen.min() >= 0 and chosen.max() < categories)):
        raise LoadError(f"{what}: its categories do not agree")


def _whole(text: str) -> np.ndarray:
    return np.array(text.split(), np.int64)


def _lines(block: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in block.split("\n"):
        name, mark, value = line.partition("=")
        if mark and name in found:
            raise LoadError(f"{name[:32]!r} is said twice")
        found[name] = value
    return found
