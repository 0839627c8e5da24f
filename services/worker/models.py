"""Compares the worker's model folders with the registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from libs.artifacts import manifest_digest
from libs.registry import RegistrySnapshot
from services.worker.engines.port import EngineLoadError
from services.worker.policy.agreement import disagreement


def check_models(models: Mapping[str, str], snapshot: RegistrySnapshot) -> None:
    """Check every folder that has a manifest against the registry's record of its version.

    A version that is not registered (yet) passes: nothing is routed to it before it is.

    :raises EngineLoadError: the files are others than those registered; the message names the file.
    """
    for model, folder in models.items():
        version = snapshot.model_versions.get(model)
        local = _manifest(Path(folder)) if folder else None
        if version is None or local is None or not version.artifacts:
            continue
        difference = disagreement({each.path: each.sha256 for each in version.artifacts}, local)
        if difference:
            raise EngineLoadError(f"{model} in {folder}: {difference}")


def digests_of(models: Mapping[str, str], snapshot: RegistrySnapshot) -> dict[str, str]:
    """What the registry says of configured models whose files agree with it (see `check_models`)."""
    known = snapshot.model_versions
    return {model: known[model].digest or manifest_digest(known[model]) if model in known else "" for model in models}


def _manifest(folder: Path) -> dict[str, str] | None:
    """The digests that the folder's manifest.json lists; None without one (the engine decides whether it needs it)."""
    path = folder / "manifest.json"
    if not path.exists():
        return None
    try:
        return {str(each["path"]): str(each["sha256"]) for each in json.loads(path.read_bytes())["files"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineLoadError(f"{path}: malformed ({type(error).__name__})") from error
