"""The JSON files of a checkpoint, as every engine reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from libs.versions.ends import ends_of
from libs.versions.manifest import parse_object
from services.worker.engines.port import EngineLoadError


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    :raises EngineLoadError: the file cannot be read, or holds something else.
    """
    try:
        return parse_object(path.read_bytes(), path)
    except OSError as error:
        raise EngineLoadError(f"{path}: {error.strerror}") from error


def ends_in(folder: Path) -> tuple[int, ...]:
    """The tokens that end what the model of a folder says.

    :raises EngineLoadError: a file is malformed.
    """

    def read(name: str) -> dict[str, Any]:
        return read_object(folder / name) if (folder / name).exists() else {}

    try:
        return ends_of(read)
    except (TypeError, ValueError) as error:
        raise EngineLoadError(f"{folder}: eos_token_id is malformed ({error})") from error
