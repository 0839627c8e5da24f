"""The self-test of a version before it serves: golden rows, their outputs, and rows that do not know of each other.

An artifact in JSON, its tensors as in the protocol's REST form (data flat or nested; NaN and Infinity as Python writes
them):

    {"cases": [{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": […]}],
                "outputs": [{"name": "p", "datatype": "FP32", "shape": [2], "data": […]}],
                "rtol": 1e-5, "atol": 1e-8}]}

Tolerances are as of `numpy.isclose`; without them floats must be equal to the bit. NaN equals NaN.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from services.predictor.formats.step import LoadError
from services.predictor.port import Model, ModelError, Signature, Tensor, Tensors
from services.predictor.tensors import DTYPES

_MAX_BYTES = 16 * 1024 * 1024
_ALONE = 8
"""Rows of a case that are also run alone."""
_RTOL, _ATOL = 1e-3, 1e-5
"""How far a row may be from itself in a batch: sums are taken in another order there, in float32 or less."""


def check(model: Model, content: bytes) -> Tensors:
    """Run all cases, whole and row by row.

    :returns: the inputs of the first case, as rows to warm up with.
    :raises LoadError: naming the case, the output, the row and what is wrong.
    """
    cases = list(_cases(content, model.signature))
    for number, (inputs, outputs, rtol, atol) in enumerate(cases):
        where = f"golden case {number}"
        got = _run(model, inputs, frozenset(outputs), where)
        for name, expected in outputs.items():
            _compare(got[name], expected, rtol, atol, f"{where}, output {name!r}")
        if model.signature.max_rows:
            _check_alone(model, inputs, got, (max(rtol, _RTOL), max(atol, _ATOL)), where)
    return cases[0][0]


def _check_alone(model: Model, inputs: Tensors, together: Tensors, near: tuple[float, float], where: str) -> None:
    rows = len(next(iter(inputs.values())))
    for row in range(min(rows, _ALONE) if rows > 1 else 0):
        one = {name: array[row : row + 1] for name, array in inputs.items()}
        alone = _run(model, one, frozenset(together), f"{where}, row {row} alone")
        for name, array in together.items():
            what = f"{where}, output {name!r}: row {row} depends on the rows beside it"
            _compare(alone[name], array[row : row + 1], *near, what)


def _run(model: Model, inputs: Tensors, outputs: frozenset[str], where: str) -> dict[str, np.ndarray]:
    try:
        return model.run(inputs, outputs)
    except ModelError as error:
        raise LoadError(f"{where}: the model refuses it: {error}") from None


def _compare(got: np.ndarray, expected: np.ndarray, rtol: float, atol: float, what: str) -> None:
    if got.dtype != expected.dtype or got.shape != expected.shape:
        raise LoadError(f"{what}: {got.dtype} {list(got.shape)} instead of {expected.dtype} {list(expected.shape)}")
    if got.dtype.kind == "f":
        same = np.isclose(got.astype(np.float64), expected.astype(np.float64), rtol, atol, equal_nan=True)
    else:
        same = np.asarray(got == expected)
    if not same.all():
        at = np.argwhere(~np.atleast_1d(same))[0].tolist()
        raise LoadError(f"{what}: differs at {at} ({np.count_nonzero(~same)} of {same.size} elements)")


def _cases(content: bytes, signature: Signature) -> Iterator[tuple[Tensors, Tensors, float, float]]:
    try:
        if len(content) > _MAX_BYTES:
            raise LoadError(f"golden rows: more than {_MAX_BYTES} bytes")
        cases = json.loads(content)["cases"]
        if not isinstance(cases, list) or not cases:
            raise LoadError("golden rows: there are no cases")
        for number, case in enumerate(cases):
            where = f"golden case {number}"
            inputs = {t.name: array_of(case["inputs"], t, where) for t in signature.inputs}
            named = {each["name"] for each in case["outputs"]}
            outputs = {t.name: array_of(case["outputs"], t, where) for t in signature.outputs if t.name in named}
            if not outputs or len(outputs) < len(named):
                raise LoadError(f"{where}: outputs that the version does not have, or none")
            yield inputs, outputs, float(case.get("rtol", 0)), float(case.get("atol", 0))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LoadError(f"golden rows cannot be read: {type(error).__name__}: {str(error)[:100]}") from None


def array_of(tensors: list[Mapping[str, Any]], declared: Tensor, where: str) -> np.ndarray:
    """A declared tensor out of those of a file.

    :raises LoadError: it is missing, or has another datatype.
    :raises ValueError: its data do not fill its shape, or are none.
    :raises KeyError: it lacks a field.
    """
    for given in tensors:
        if given["name"] == declared.name:
            if given["datatype"] != declared.datatype:
                raise LoadError(f"{where}, {declared.name!r}: is {given['datatype']!r}, not {declared.datatype}")
            return _filled(given["data"], declared.datatype).reshape(given["shape"])
    raise LoadError(f"{where}: {declared.name!r} is missing")


def _filled(data: Any, datatype: str) -> np.ndarray:
    if datatype == "BYTES":
        flat = [each.encode() for each in np.array(data, object).flat]
        array = np.empty(len(flat), object)
        array[:] = flat
        return array
    if datatype == "BF16":
        return (np.array(data, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.array(data, DTYPES[datatype])
