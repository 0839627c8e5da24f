"""Which file of a folder is the model of a version that predicts, and of which format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.files import FolderError, files_of, json_object
from libs.artifacts.folder import FormatError, check_step, prediction_of
from libs.artifacts.manifest import FOLDER_MANIFEST
from libs.model_files import format_of, is_pickle, pickle_fault

FORMATS = ("onnx", "xgboost", "lightgbm", "sklearn")
"""Those whose signature is in the file; others are told by the manifest alone."""
GOLDEN = ("golden.json", "golden.csv")
"""Where golden rows lie, if nobody says otherwise."""
_GENERATES = frozenset({"config.json", "adapter_config.json"})
"""Checkpoints of models that generate, and their adapters, have one; pickles beside it are none of ours."""
_SUFFIXES = {
    "onnx": (".onnx",),
    "xgboost": (".ubj", ".json", ".xgb", ".model"),
    "lightgbm": (".txt", ".lgb", ".model"),
    "sklearn": (".skops",),
}


def begun(folder: Path, format_: str = "") -> tuple[pb.PredictionSpec, Mapping[str, Any]] | None:
    """What is said of a version that predicts, with its steps; None: the folder is no such version's.

    :param format_: as a person says it; empty: found out.
    :returns: the spec, and the manifest's `prediction`, which tells what it does not say from what it says is 0.
    :raises FormatError: a file is certainly of another format.
    :raises FolderError: the model is a pickle, or which file it is cannot be said.
    """
    listed = json_object(folder / FOLDER_MANIFEST)
    said = listed.get("prediction") or {}
    if not isinstance(said, dict):
        raise FolderError(f"{FOLDER_MANIFEST}: prediction must be an object")
    spec = prediction_of(said)
    if not spec.steps:
        files = [each["path"] for each in listed.get("files") or () if isinstance(each, dict) and "path" in each]
        found = _model(folder, files or files_of(folder), format_, certain=bool(said))
        if found is None:
            return None
        spec.steps.add(path=found[0], format=found[1])
    for step in spec.steps:
        if not step.format and (folder / step.path).is_file():
            step.format = (format_ if len(spec.steps) == 1 else "") or format_of(folder / step.path)
        check_step(folder, step)
    formats = [step.format for step in spec.steps]
    if format_ and format_ not in formats:
        raise FormatError(spec.steps[0].path, format_, f"{formats[0]} by {FOLDER_MANIFEST}")
    return spec, said


def _model(folder: Path, files: Sequence[str], format_: str, *, certain: bool) -> tuple[str, str] | None:
    """The model's file and its format.

    :param certain: it is one that predicts.
    """
    there = [path for path in files if (folder / path).is_file()]
    found = {path: kind for path in there if (kind := format_of(folder / path))}
    wanted = {path: kind for path, kind in found.items() if format_ in ("", kind)}
    if len(wanted) > 1:
        raise FolderError(f"{_listed(wanted)}: say in {FOLDER_MANIFEST} which one is the model (prediction.steps)")
    if wanted:
        return next(iter(wanted.items()))
    if format_ or certain or _GENERATES.isdisjoint(there):
        for path in there:
            if is_pickle(folder / path):
                raise FolderError(pickle_fault(path))
    if found:
        path, kind = next(iter(found.items()))
        raise FormatError(path, format_, kind)
    named = [path for path in there if path not in GOLDEN and path.endswith(_SUFFIXES.get(format_, ()))]
    if len(named) == 1:
        return named[0], format_
    if format_ or certain:
        what = f"no file is {format_}" if format_ else "no file is certainly a model"
        raise FolderError(f"{folder}: {what}; say in {FOLDER_MANIFEST} which one is (prediction.steps), or --format")
    return None


def _listed(found: Mapping[str, str]) -> str:
    return ", ".join(f"{path} is {kind}" for path, kind in sorted(found.items()))
