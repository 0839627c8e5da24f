"""The JSON files of a checkpoint, as every engine reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def token_ids(value: Any) -> tuple[int, ...]:
    """What stands under `eos_token_id` or `bos_token_id`: one id, several or none."""
    if value is None:
        return ()
    return tuple(int(each) for each in value) if isinstance(value, list) else (int(value),)
