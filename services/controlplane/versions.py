"""Which version each content had, on disk: a restarted control plane gives unchanged resources their old versions."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from services.controlplane.convert import Versions

_DECODER = msgspec.json.Decoder(dict[str, tuple[str, str]])


def load(path: Path) -> Versions:
    """What `save` wrote; empty when there is no such file or it cannot be read, which only costs the old numbers."""
    try:
        return _DECODER.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}


def save(path: Path, versions: Versions) -> None:
    """Writes whole or not at all.

    :raises OSError: when the disk refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_bytes(msgspec.json.encode(versions))
    partial.replace(path)
