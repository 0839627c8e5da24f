"""Golden rows out of a file, and what is kept of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from weir.registry.v1 import registry_pb2 as pb

from libs.rows import RowsError, parts_of
from services.predictor.formats.step import LoadError
from services.predictor.golden import array_of
from services.predictor.port import Tensor, Tensors
from services.predictor.tensors import DTYPES

MOST_BYTES = 4 << 20
MOST_ROWS = 4096
_TOGETHER = 64
"""Rows of a case."""
_RTOL, _ATOL = 1e-4, 1e-5
"""How far an answer may be from the recorded one: processors add in another order."""

Case = dict[str, Any]
"""As in golden.py; `outputs` may not be there yet."""


def read(path: Path, inputs: Sequence[pb.TensorSpec], max_rows: int) -> list[Case]:
    """The cases of a file: those of golden.py, in which outputs may be missing; a JSON object of inputs by name, as
    `weir predict --json` takes it; or a CSV file, as `weir predict --csv` does.

    :param max_rows: of the version; 0: inputs are taken whole.
    :raises LoadError: the file does not fit the inputs.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise LoadError(f"{path.name}: more than {MOST_BYTES} bytes of golden rows; some are enough")
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".csv":
            parts = list(parts_of(list(csv.reader(text.splitlines())), inputs, min(max_rows or 1, _TOGETHER)))
            return _checked(path, [{"inputs": list(_tensors(each, inputs))} for each in parts])
        content = json.loads(text)
        if not isinstance(content, dict):
            raise LoadError(f"{path.name} is no JSON object")
        cases = content["cases"] if "cases" in content else [{"inputs": list(_tensors(content, inputs))}]
        if not isinstance(cases, list) or not cases or not all(isinstance(each, dict) for each in cases):
            raise LoadError(f"{path.name} has no cases")
        return _checked(path, cases)
    except (OSError, ValueError, LookupError, TypeError, RecursionError, csv.Error) as error:
        what = str(error) if isinstance(error, RowsError) else f"{type(error).__name__}: {str(error)[:200]}"
        raise LoadError(f"{path.name} has no golden rows that fit: {what}") from None


def arrays(case: Case, inputs: Sequence[pb.TensorSpec]) -> dict[str, np.ndarray]:
    """A case's inputs.

    :raises LoadError: they are not those that are declared.
    """
    made = {}
    try:
        for each in inputs:
            array = array_of(case["inputs"], Tensor(each.name, each.datatype, tuple(each.shape)), "golden rows")
            if len(array.shape) != len(each.shape) or any(
                want not in (-1, have) for have, want in zip(array.shape, each.shape, strict=True)
            ):
                raise LoadError(f"golden rows: input {each.name!r} is {list(array.shape)}, not {list(each.shape)}")
            made[each.name] = array
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"golden rows cannot be read: {type(error).__name__}: {str(error)[:200]}") from None
    return made


def recorded(cases: Sequence[Case], answers: Sequence[Tensors]) -> dict[str, Any]:
    """The cases with what the model gave, in golden.py's form."""
    kept = [
        {"rtol": _RTOL, "atol": _ATOL, **case, "outputs": [_tensor(name, array) for name, array in given.items()]}
        if "outputs" not in case
        else case
        for case, given in zip(cases, answers, strict=True)
    ]
    return {"cases": kept}


def datatype_of(array: np.ndarray) -> str:
    """The protocol's datatype of an array that a library gave.

    :raises LoadError: there is none.
    """
    for name, dtype in DTYPES.items():
        if name != "BF16" and array.dtype == dtype:
            return name
    raise LoadError(f"it gives {array.dtype}, which no tensor of the protocol is")


def _checked(path: Path, cases: list[Case]) -> list[Case]:
    rows = sum(max((int(each["shape"][0]) for each in case["inputs"]), default=0) for case in cases)
    if rows > MOST_ROWS:
        raise LoadError(f"{path.name} has {rows} golden rows; at most {MOST_ROWS} are kept")
    return cases


def _tensors(given: Mapping[str, Any], inputs: Sequence[pb.TensorSpec]) -> Iterator[dict[str, Any]]:
    if unknown := given.keys() - {each.name for each in inputs}:
        raise LoadError(f"golden rows have an input {min(unknown)!r}; the model takes {_names(inputs)}")
    for each in inputs:
        if each.name not in given:
            raise LoadError(f"golden rows have no input {each.name!r}")
        shape = np.shape(given[each.name])
        flat = np.array(given[each.name], object).ravel().tolist()
        yield {"name": each.name, "datatype": each.datatype, "shape": list(shape), "data": flat}


def _names(inputs: Sequence[pb.TensorSpec]) -> str:
    return ", ".join(repr(each.name) for each in inputs)


def _tensor(name: str, array: np.ndarray) -> dict[str, Any]:
    data = [each.decode() if isinstance(each, bytes) else each for each in array.ravel().tolist()]
    return {"name": name, "datatype": datatype_of(array), "shape": list(array.shape), "data": data}
