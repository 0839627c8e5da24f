"""The schema of a version that predicts: what it takes and gives, as one digest that two versions can be held by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from weir.registry.v1 import registry_pb2 as pb

_OTHER = {"datatype": "another datatype", "shape": "another shape", "columns": "other columns"}


def schema_sha256(spec: pb.PredictionSpec) -> str:
    """SHA-256 of its inputs and outputs, 64 hex digits: names, datatypes, shapes, columns and categories. Tensors are
    known by their names, so their order does not count; that of columns does."""
    content = {"inputs": _tensors(spec.inputs), "outputs": _tensors(spec.outputs)}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def schema_of(version: pb.ModelVersion) -> str:
    """A version's schema: computed for one that predicts, which may not say it; else as it says."""
    return schema_sha256(version.prediction) if version.HasField("prediction") else version.schema_sha256


def schema_changes(old: pb.PredictionSpec, new: pb.PredictionSpec) -> list[str]:
    """What is other in the schema of `new`, in words; empty where it is the same."""
    found = []
    for what, before, after in (("input", old.inputs, new.inputs), ("output", old.outputs, new.outputs)):
        was, now = ({each["name"]: each for each in _tensors(tensors)} for tensors in (before, after))
        found += [f"no {what} {name!r}" for name in was.keys() - now.keys()]
        found += [f"a new {what} {name!r}" for name in now.keys() - was.keys()]
        for name in sorted(was.keys() & now.keys()):
            parts = [part for part in _OTHER if was[name][part] != now[name][part]]
            found += [f"{_OTHER[part]} of {what} {name!r}{_shown(was[name][part], now[name][part])}" for part in parts]
    return sorted(found)


def _shown(was: Any, now: Any) -> str:
    """Short ones only: of columns there may be thousands."""
    return f" ({was} → {now})" if len(f"{was}{now}") <= 40 else ""


def _tensors(tensors: Iterable[pb.TensorSpec]) -> list[dict[str, Any]]:
    made = [
        {
            "name": each.name,
            "datatype": each.datatype,
            "shape": list(each.shape),
            "columns": [[column.name, column.categorical, list(column.categories)] for column in each.columns],
        }
        for each in tensors
    ]
    return sorted(made, key=lambda each: str(each["name"]))
