"""Writes the folder of a model version: golden rows, card and manifest beside what was trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from models.predict.scores import Score

GOLDEN, PRIOR, CARD = "golden.json", "prior.json", "card.md"
_DATATYPES = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "object": "BYTES"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trained model, its files written already."""

    name: str
    title: str
    prediction: Mapping[str, Any]
    """`PredictionSpec` in protobuf's JSON form, without `golden` and `prior`."""
    files: Sequence[str]
    scores: Sequence[Score]
    card: str
    """What a card says beside the scores: data, method, limits; Markdown."""
    training_data_sha256: str
    golden: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]
    """Inputs and the outputs that they gave where it was trained."""
    absolute: float = 1e-5
    relative: float = 1e-4
    prior: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Outputs of one row, told where nothing can be computed; empty: none."""
    base: str = ""
    """The version it was made from."""


def write(trained: Trained, folder: Path) -> None:
    """Write golden rows, prior, card and `manifest.json` into a folder that holds `trained.files`."""
    inputs, outputs = trained.golden
    tolerance = {"rtol": trained.relative, "atol": trained.absolute}
    _write(folder / GOLDEN, {"cases": [{"inputs": tensors(inputs), "outputs": tensors(outputs), **tolerance}]})
    prediction = {**trained.prediction, "golden": GOLDEN}
    files = [*trained.files, GOLDEN, CARD]
    if trained.prior:
        _write(folder / PRIOR, {"outputs": tensors(trained.prior)})
        prediction["prior"] = PRIOR
        files.append(PRIOR)
    (folder / CARD).write_text(_card(trained), encoding="utf-8")
    content = {
        "name": trained.name,
        "version": "1",
        "files": [_entry(folder / file) for file in sorted(files)],
        "architecture": main_step(trained.prediction),
        "pool": "predict",
        "prediction": prediction,
        "offline_metrics": {score.name: round(score.value, 4) for score in trained.scores},
        "training_data_sha256": trained.training_data_sha256,
        **({"provenance": {"base": trained.base}} if trained.base else {}),
    }
    _write(folder / "manifest.json", content, indent=2)


def main_step(prediction: Mapping[str, Any]) -> str:
    """The format of the step that is the model: the first that is no Python."""
    formats = [step["format"] for step in prediction["steps"]]
    return next((each for each in formats if each != "python"), formats[0])


def tensors(arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Arrays as tensors of the Open Inference Protocol's REST form; elements of BYTES as UTF-8 text."""
    return [
        {
            "name": name,
            "datatype": _DATATYPES[array.dtype.name],
            "shape": list(array.shape),
            "data": [each.decode() if isinstance(each, bytes) else each for each in array.ravel().tolist()],
        }
        for name, array in arrays.items()
    ]


def data_sha256(*arrays: np.ndarray) -> str:
    """Digest of the rows that a model was trained with."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _card(trained: Trained) -> str:
    rows = "\n".join(f"| {score.name} | {score} | {score.rows} |" for score in trained.scores)
    return (
        f"# {trained.name}: {trained.title}\n\n"
        f"| held-out score | value (95% interval) | rows |\n| --- | --- | --- |\n{rows}\n\n{trained.card.strip()}\n"
    )


def _write(path: Path, content: Mapping[str, Any], indent: int | None = None) -> None:
    path.write_text(json.dumps(content, indent=indent, allow_nan=False) + "\n", encoding="utf-8")


def _entry(path: Path) -> dict[str, object]:
    content = path.read_bytes()
    return {"path": path.name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
