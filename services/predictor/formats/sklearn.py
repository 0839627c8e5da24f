"""scikit-learn, saved by skops: types that are neither skops' nor ours to trust are refused by name.

Takes one tensor: numbers as the estimator wants them, BYTES of UTF-8 as texts ([-1]) or categories ([-1, columns]).
Values that the estimator refuses (NaN where it takes none, a category that `handle_unknown` refuses) are the caller's
fault; what is encoded as unknown is up to the estimator.

Options: `input` (a tensor's name); of the methods `predict`, `predict_proba`, `predict_log_proba`, `decision_function`,
`score_samples` and `transform`, each with the name of the output that it gives. Without them, `predict` gives the one
output.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse
import skops.io
from threadpoolctl import threadpool_limits

from services.predictor.formats.step import LoadError, Wiring
from services.predictor.formats.texts import to_bytes, to_text
from services.predictor.port import ModelError, Tensor, Tensors

METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples", "transform")
TRUSTED = (
    "numpy.dtype",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
    "sklearn.gaussian_process.kernels.ConstantKernel",
    "sklearn.gaussian_process.kernels.Product",
    "sklearn.gaussian_process.kernels.RBF",
    "sklearn.gaussian_process.kernels.Sum",
    "sklearn.gaussian_process.kernels.WhiteKernel",
    "sklearn.metrics._dist_metrics.EuclideanDistance64",
    "sklearn.neighbors._ball_tree.BallTree",
    "sklearn.neighbors._kd_tree.KDTree",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.tree._tree.Tree",
)
"""Beside what skops trusts: parts of fitted estimators that compute and do nothing else."""


class Estimator:
    """The `Step` of an estimator or pipeline."""

    native = False

    def __init__(self, estimator: Any, source: Tensor, methods: Mapping[str, Tensor]) -> None:
        self.inputs = (source.name,)
        self.outputs = tuple(methods.values())
        self._source = source
        self._methods = {tensor.name: getattr(estimator, method) for method, tensor in methods.items()}

    def run(self, tensors: Tensors, wanted: frozenset[str]) -> dict[str, np.ndarray]:
        """See `Step`."""
        name = self._source.name
        array = tensors[name]
        if self._source.datatype == "BYTES":
            array = to_text(array, name)
        try:
            return {output: dense(self._methods[output](array)) for output in self._methods if output in wanted}
        except (ValueError, TypeError, IndexError) as error:
            raise ModelError(f"input {name!r}: {_reason(error)}", name) from None

    def close(self) -> None:
        """See `Step`."""
        self._methods.clear()


def load(content: bytes, wiring: Wiring) -> Estimator:
    """Load a step.

    :raises LoadError: the content is none of skops, holds types that are not trusted, or does not fit its declaration.
    """
    # Of BLAS and OpenMP, for as long as this process runs: the lanes are what runs side by side.
    threadpool_limits(1)
    estimator = read_estimator(content)
    source = _source(wiring)
    columns = getattr(estimator, "n_features_in_", -1)
    if len(source.shape) == 2 and columns not in (-1, source.shape[1]):
        raise LoadError(f"input {source.name!r}: dimension 1 is {source.shape[1]}; the model has {columns} features")
    methods = _methods(wiring)
    for method in methods:
        if not hasattr(estimator, method):
            raise LoadError(f"{type(estimator).__name__} has no method {method!r}")
    return Estimator(estimator, source, methods)


def read_estimator(content: bytes) -> Any:
    """An estimator that runs in one thread.

    :raises LoadError: the content is none of skops, or holds types that are not trusted.
    """
    try:
        untrusted = sorted(set(skops.io.get_untrusted_types(data=content)) - set(TRUSTED))
        if untrusted:
            raise LoadError(f"types that are not trusted: {', '.join(untrusted)[:500]}")
        with warnings.catch_warnings():
            # Another version of scikit-learn: golden rows say whether it matters.
            warnings.simplefilter("ignore")
            estimator = skops.io.loads(content, trusted=list(TRUSTED))
    except LoadError:
        raise
    except Exception as error:  # of zip, JSON, numpy and skops itself
        raise LoadError(f"no skops file: {type(error).__name__}: {str(error)[:200]}") from None
    if not hasattr(estimator, "get_params"):
        raise LoadError(f"{type(estimator).__name__} is no estimator")
    estimator.set_params(**{name: 1 for name in estimator.get_params() if name.rpartition("__")[2] == "n_jobs"})
    return estimator


def _source(wiring: Wiring) -> Tensor:
    source = wiring.source()
    if source.datatype == "BF16":
        raise LoadError(f"input {source.name!r}: scikit-learn takes no BF16")
    return source


def _methods(wiring: Wiring) -> dict[str, Tensor]:
    outputs = [tensor.name for tensor in wiring.outputs]
    asked = {method: name for method in METHODS if (name := wiring.options.text(method))}
    if not asked:
        if len(outputs) != 1:
            raise LoadError("say which method gives which output: option 'predict', 'predict_proba' and so on")
        asked = {"predict": outputs[0]}
    for method, name in asked.items():
        if outputs and name not in outputs:
            raise LoadError(f"option {method!r}: {name!r} is no output of the version")
    return {method: wiring.named(name) for method, name in asked.items()}


def dense(result: Any) -> np.ndarray:
    """What a method gives, as a tensor."""
    array = np.ascontiguousarray(result.toarray() if scipy.sparse.issparse(result) else result)
    return to_bytes(array) if array.dtype.kind in "OU" else array


def _reason(error: Exception) -> str:
    """scikit-learn's words about NaN and infinity; others may repeat values."""
    first = str(error).partition("\n")[0]
    return first[:100] if first.startswith("Input X contains ") else f"refused ({type(error).__name__})"
