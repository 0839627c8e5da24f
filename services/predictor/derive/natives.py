"""Models as their own libraries read and run them, beside `formats`, which runs them for callers: what a library says
of inputs and outputs, and the answers that golden rows keep."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from weir.registry.v1 import registry_pb2 as pb

from services.predictor.files import Files
from services.predictor.formats.step import Options
from services.predictor.port import Tensors

MOST_COLUMNS = 2048
"""Of a tensor with more, names are not kept."""
_FEATURES, _PREDICTION, _PROBABILITIES, _TRANSFORMED = "features", "prediction", "probabilities", "transformed"
_NUMBERED = re.compile(r"(Column_|f|x)?\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """A model in its own library."""

    library: str
    """Its name and version."""
    inputs: Sequence[pb.TensorSpec]
    """What it says that it takes; without a shape where it does not say."""
    outputs: Sequence[pb.TensorSpec]
    """By name what it gives; without a datatype where only what it gives says it."""
    run: Callable[[Tensors], dict[str, np.ndarray]]
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the step beside those that were said."""
    exact: bool = False
    """It takes the datatypes of `inputs` and no others."""


def read(files: Files, step: pb.PredictionStep, said: pb.PredictionSpec) -> Native:
    """Read a model.

    :param said: what is known already: tensors that have a name there keep it.
    :raises LoadError: the file is not what the step says.
    """
    return _READERS[step.format](files, step, said)


def _xgboost(files: Files, step: pb.PredictionStep, said: pb.PredictionSpec) -> Native:
    import xgboost as xgb

    from services.predictor.formats.xgboost import read_booster

    xgb.set_config(verbosity=0)
    booster = read_booster(files.read(step.path))
    types = booster.feature_types or []
    categorical = {at for at, kind in enumerate(types) if kind == "c"}
    columns = _columns(booster.feature_names or [], categorical, count=len(types))
    source, given = _one(said.inputs, _FEATURES), _main_output(step, said)
    options = Options(step.options)
    missing, how = options.number("missing", math.nan), options.choice("predict", ("value", "margin"))
    rounds = options.count("rounds", 0, booster.num_boosted_rounds())

    def run(tensors: Tensors) -> dict[str, np.ndarray]:
        matrix = tensors[source]
        found = booster.inplace_predict(
            matrix, iteration_range=(0, rounds), predict_type=how, missing=missing, validate_features=False
        )
        return {given: found}

    return Native(
        library=f"xgboost {xgb.__version__}",
        inputs=[_matrix(source, "FP32", booster.num_features(), columns)],
        outputs=[pb.TensorSpec(name=given)],
        run=run,
    )


def _lightgbm(files: Files, step: pb.PredictionStep, said: pb.PredictionSpec) -> Native:
    import lightgbm as lgb

    from services.predictor.formats.lightgbm import read_booster

    content = files.read(step.path)
    booster = read_booster(content)
    infos = re.search(r"^feature_infos=(.*)$", content.decode(), re.MULTILINE)
    # "[0:1]" is a range, "none" a feature that no tree reads; else it lists the codes of categories.
    told = infos.group(1).split() if infos else []
    categorical = [at for at, info in enumerate(told) if not info.startswith("[") and info != "none"]
    tables: list[list[Any]] = booster.pandas_categorical or []
    # pandas' tables stand in the order of its columns of categories, of which no tree may read one.
    named = dict(zip(categorical, tables, strict=True)) if len(tables) == len(categorical) else {}
    columns = _columns(booster.feature_name(), categorical, named)
    source, given = _one(said.inputs, _FEATURES), _main_output(step, said)
    options = Options(step.options)
    rounds = options.count("rounds", 0, booster.current_iteration()) or None
    raw = options.choice("predict", ("value", "margin")) == "margin"

    def run(tensors: Tensors) -> dict[str, np.ndarray]:
        found = booster.predict(tensors[source], num_iteration=rounds, raw_score=raw, num_threads=1)
        return {given: np.asarray(found)}

    return Native(
        library=f"lightgbm {lgb.__version__}",
        inputs=[_matrix(source, "FP64", booster.num_feature(), columns)],
        outputs=[pb.TensorSpec(name=given)],
        run=run,
    )


def _sklearn(files: Files, step: pb.PredictionStep, said: pb.PredictionSpec) -> Native:
    import sklearn

    from services.predictor.formats.sklearn import METHODS, dense, read_estimator
    from services.predictor.formats.texts import to_text

    estimator = read_estimator(files.read(step.path))
    source = _one(said.inputs, _FEATURES)
    methods = {method: step.options[method] for method in METHODS if method in step.options}
    options: dict[str, str] = {}
    if not methods:
        methods = options = _usual(estimator, [each.name for each in said.outputs])
    names = [str(each) for each in getattr(estimator, "feature_names_in_", ())]
    width = getattr(estimator, "n_features_in_", 0)
    classes = getattr(estimator, "classes_", None)
    # Of several outputs each it would be a list of lists, which columns cannot tell.
    labels = [str(each) for each in classes] if isinstance(classes, np.ndarray) and classes.ndim == 1 else []
    per_class = {name for method, name in methods.items() if method in ("predict_proba", "predict_log_proba")}
    said_input = next(iter(said.inputs), pb.TensorSpec())

    def run(tensors: Tensors) -> dict[str, np.ndarray]:
        array = tensors[source]
        if array.dtype == object:
            array = to_text(array, source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # columns have no names in an array
            return {name: dense(getattr(estimator, method)(array)) for method, name in methods.items()}

    known = _matrix(source, "FP64", width, _columns(names)) if width else pb.TensorSpec(name=source)
    if said_input.datatype == "BYTES" and not said_input.columns:
        known.datatype = "BYTES"
    return Native(
        library=f"scikit-learn {sklearn.__version__}",
        inputs=[known],
        outputs=[
            pb.TensorSpec(name=name, columns=_columns(labels) if name in per_class else ()) for name in methods.values()
        ],
        run=run,
        options=options,
    )


def _onnx(files: Files, step: pb.PredictionStep, said: pb.PredictionSpec) -> Native:
    import onnxruntime as ort

    from services.predictor.formats.onnx import DATATYPES, open_session
    from services.predictor.formats.texts import to_bytes, to_text

    beside = partial(files.beside, step.path)
    session = open_session(files.read(step.path), 1, ["CPUExecutionProvider"], beside)

    def spec(node: Any) -> pb.TensorSpec:
        shape = [size if isinstance(size, int) and size > 0 else -1 for size in node.shape]
        return pb.TensorSpec(name=node.name, datatype=DATATYPES.get(node.type, node.type), shape=shape)

    given = [spec(node) for node in session.get_outputs() if node.type in DATATYPES]

    def run(tensors: Tensors) -> dict[str, np.ndarray]:
        feed = {name: to_text(array, name) if array.dtype == object else array for name, array in tensors.items()}
        names = [each.name for each in given]
        found = dict(zip(names, session.run(names, feed), strict=True))
        return {name: to_bytes(array) if array.dtype.kind in "OU" else array for name, array in found.items()}

    return Native(
        library=f"onnxruntime {ort.__version__}",
        inputs=[spec(node) for node in session.get_inputs()],
        outputs=given,
        run=run,
        exact=True,
    )


_READERS: Mapping[str, Callable[[Files, pb.PredictionStep, pb.PredictionSpec], Native]] = {
    "xgboost": _xgboost,
    "lightgbm": _lightgbm,
    "sklearn": _sklearn,
    "onnx": _onnx,
}
KNOWN = tuple(_READERS)
"""Formats whose library says what a model takes."""


def _usual(estimator: Any, said: Sequence[str]) -> dict[str, str]:
    """By method, the output that it gives: the only one that is said, or the usual ones."""
    if len(said) == 1:
        return {"predict": said[0]} if hasattr(estimator, "predict") else {"transform": said[0]}
    if not hasattr(estimator, "predict"):
        return {"transform": _TRANSFORMED}
    if not hasattr(estimator, "predict_proba"):
        return {"predict": _PREDICTION}
    return {"predict": _PREDICTION, "predict_proba": _PROBABILITIES}


def _matrix(name: str, datatype: str, width: int, columns: Sequence[pb.ColumnSpec]) -> pb.TensorSpec:
    return pb.TensorSpec(name=name, datatype=datatype, shape=[-1, width], columns=columns)


def _columns(
    names: Sequence[str],
    categorical: Collection[int] = (),
    tables: Mapping[int, Sequence[Any]] = MappingProxyType({}),
    count: int = 0,
) -> list[pb.ColumnSpec]:
    """Empty where nothing is known but numbers that libraries give.

    :param count: how many there are, where there may be no names.
    """
    count = len(names) or count
    if count > MOST_COLUMNS:
        return []
    named = bool(names) and not all(_NUMBERED.fullmatch(name) for name in names)
    if not named and not categorical:
        return []
    return [
        pb.ColumnSpec(
            name=names[at] if named else "",
            categorical=at in categorical,
            categories=[str(each) for each in tables.get(at, ())],
        )
        for at in range(count)
    ]


def _one(said: Sequence[pb.TensorSpec], default: str) -> str:
    """The name of the one tensor, as said."""
    return said[0].name if len(said) == 1 else default


def _main_output(step: pb.PredictionStep, said: pb.PredictionSpec) -> str:
    others = [each for each in said.outputs if each.name != step.options.get("contributions")]
    return step.options.get("output", "") or _one(others, _PREDICTION)
