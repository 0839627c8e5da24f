"""XGBoost: models saved as UBJ or JSON, predicted in place (no DMatrix is built).

Takes one FP32 or FP64 matrix [-1, features]; categories are their codes. NaN is a missing value; a category that was
not in the training data goes where XGBoost sends it. ±inf is compared as any number; contributions refuse it, as a
DMatrix does.

Options: `input`, `output`, `contributions` (names of tensors, see trees.py); `predict` ("value" or "margin", before the
link function); `missing` (a number that stands for a missing value beside NaN); `rounds` (the first so many boosting
rounds only); `threads` (1).

What `Booster.inplace_predict` does is done here by the same call of the C API: of one row through 100 trees, its checks
of what kind of table it was given take 130 µs of 165.
"""

from __future__ import annotations

import ctypes
import json
import math

import numpy as np
import xgboost as xgb
from xgboost.libpath import find_lib_path

from services.predictor.formats.sound import check_xgboost
from services.predictor.formats.step import THREADS, LoadError, Wiring
from services.predictor.formats.trees import Ports, ports, shaped
from services.predictor.port import ModelError, Tensors

_LIBRARY = ctypes.CDLL(find_lib_path()[0])
_LIBRARY.XGBGetLastError.restype = ctypes.c_char_p


class Booster:
    """The `Step` of a booster."""

    native = True

    def __init__(self, booster: xgb.Booster, wired: Ports, *, predict: str, missing: float, rounds: int) -> None:
        self.inputs = (wired.matrix.name,)
        self.outputs = wired.outputs
        self._booster, self._ports, self._missing, self._rounds = booster, wired, missing, (0, rounds)
        config: dict[str, object] = {
            "type": int(predict == "margin"),
            "training": False,
            "strict_shape": True,
            "cache_id": 0,
        }
        config |= {"iteration_begin": 0, "iteration_end": rounds, "missing": missing}
        self._config = json.dumps(config).encode()
        # What the library reads the matrix through; made for every call otherwise, for 23 µs.
        self._proxy = ctypes.c_void_p()
        _check(_LIBRARY.XGProxyDMatrixCreate(ctypes.byref(self._proxy)))

    def run(self, tensors: Tensors, wanted: frozenset[str]) -> dict[str, np.ndarray]:
        """See `Step`."""
        name = self._ports.matrix.name
        matrix = np.ascontiguousarray(tensors[name])
        prediction, contributions = self._ports.prediction, self._ports.contributions
        found: dict[str, np.ndarray] = {}
        try:
            if prediction.name in wanted:
                found[prediction.name] = shaped(self._predict(matrix), prediction, len(matrix))
            if contributions and contributions.name in wanted:
                found[contributions.name] = shaped(self._explain(matrix), contributions, len(matrix))
        except (xgb.core.XGBoostError, ValueError) as error:
            # Its text has a stack trace behind it.
            reason = "a value is infinite or too large" if "Input data contains `inf`" in str(error) else "refused"
            raise ModelError(f"input {name!r}: {reason}", name) from None
        return found

    def _predict(self, matrix: np.ndarray) -> np.ndarray:
        rows, columns = matrix.shape
        interface = b'{"data":[%d,true],"strides":null,"typestr":"%s","shape":[%d,%d],"version":3}' % (
            matrix.ctypes.data,
            matrix.dtype.str.encode(),
            rows,
            columns,
        )
        shape, dimensions = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint64()
        values = ctypes.POINTER(ctypes.c_float)()
        out = (ctypes.byref(shape), ctypes.byref(dimensions), ctypes.byref(values))
        _check(
            _LIBRARY.XGBoosterPredictFromDense(self._booster.handle, interface, self._config, self._proxy, *out),
        )
        sizes = shape[: dimensions.value]
        # The library's own memory, until the next call.
        result = np.empty(sizes, np.float32)
        ctypes.memmove(result.ctypes.data, values, result.nbytes)
        return result

    def _explain(self, matrix: np.ndarray) -> np.ndarray:
        types = self._booster.feature_types
        data = xgb.DMatrix(
            matrix,
            missing=self._missing,
            nthread=1,
            feature_names=self._booster.feature_names,
            feature_types=types,
            enable_categorical=bool(types and "c" in types),
        )
        return self._booster.predict(data, pred_contribs=True, iteration_range=self._rounds)

    def close(self) -> None:
        """See `Step`."""
        _LIBRARY.XGDMatrixFree(self._proxy)
        del self._booster


def load(content: bytes, wiring: Wiring) -> Booster:
    """Load a step.

    :raises LoadError: the content is no model, or does not fit its declaration.
    """
    options = wiring.options
    xgb.set_config(verbosity=0)
    booster = read_booster(content, options.count("threads", 1, THREADS))
    rounds = options.count("rounds", 0, booster.num_boosted_rounds())
    return Booster(
        booster,
        ports(wiring, booster.num_features(), "FP32"),
        predict=options.choice("predict", ("value", "margin")),
        missing=options.number("missing", math.nan),
        rounds=rounds,
    )


def read_booster(content: bytes, threads: int = 1) -> xgb.Booster:
    """A booster of trees.

    :raises LoadError: the content is none.
    """
    booster = xgb.Booster({"nthread": threads})
    try:
        # `Booster.load_model` takes a bytearray, which would be a copy.
        _check(_LIBRARY.XGBoosterLoadModelFromBuffer(booster.handle, content, ctypes.c_uint64(len(content))))
    except (xgb.core.XGBoostError, ValueError) as error:
        raise LoadError(f"no XGBoost model: {str(error).partition(chr(10))[0][:200]}") from None
    check_xgboost(bytes(booster.save_raw("ubj")))
    return booster


def _check(code: int) -> None:
    if code:
        raise xgb.core.XGBoostError(_LIBRARY.XGBGetLastError().decode(errors="replace"))
