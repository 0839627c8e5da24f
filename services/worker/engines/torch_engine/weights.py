"""Verifies a model folder against its manifest and reads its safetensors files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.worker.engines.port import EngineLoadError

if TYPE_CHECKING:
    from torch import Tensor

_CHUNK = 1 << 20


def verify_manifest(folder: Path, model: str) -> None:
    """Check that `folder` holds `model` ("name@version") and that every file is what manifest.json says.

    :raises EngineLoadError: the manifest is missing, malformed or of another model, or a file is missing, of another
        length or of another digest; the message names the file.
    """
    path = folder / "manifest.json"
    manifest = _read_json(path)
    try:
        found = f"{manifest['name']}@{manifest['version']}"
        files = [(str(each["path"]), int(each["bytes"]), str(each["sha256"])) for each in manifest["files"]]
    except (KeyError, TypeError, ValueError) as error:
        raise EngineLoadError(f"{path}: malformed ({type(error).__name__}: {error})") from error
    if found != model:
        raise EngineLoadError(f"{path}: describes {found}, not {model}")
    for name, size, digest in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise EngineLoadError(f"{path}: {name} lies outside the model's folder")
        _verify_file(folder / name, size, digest)
    listed = {name for name, _, _ in files}
    for used in (folder / "config.json", *weight_files(folder)):
        if used.name not in listed:
            raise EngineLoadError(f"{path}: does not list {used.name}")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: those of its index if it has one, else model.safetensors.

    :raises EngineLoadError: the index is malformed.
    """
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    try:
        names = sorted({str(name) for name in _read_json(index)["weight_map"].values()})
    except (KeyError, AttributeError) as error:
        raise EngineLoadError(f"{index}: malformed ({type(error).__name__}: {error})") from error
    if any(Path(name).name != name for name in names):
        raise EngineLoadError(f"{index}: names a file outside the model's folder")
    return [folder / name for name in names]


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the checkpoint by name, as stored.

    :raises EngineLoadError: a file is missing, truncated or not safetensors; the message names it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            tensors |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise EngineLoadError(f"{path}: cannot be read ({error})") from error
    return tensors


def _verify_file(path: Path, size: int, digest: str) -> None:
    try:
        found = path.stat().st_size
        if found != size:
            raise EngineLoadError(f"{path}: has {found} bytes, the manifest says {size}")
        actual = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                actual.update(chunk)
    except OSError as error:
        raise EngineLoadError(f"{path}: {error.strerror}") from error
    if actual.hexdigest() != digest:
        raise EngineLoadError(f"{path}: its sha256 is not the manifest's")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineLoadError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise EngineLoadError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise EngineLoadError(f"{path}: not a JSON object")
    return content
