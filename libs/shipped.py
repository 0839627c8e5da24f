"""The files that come with the program beside its code: topology, profiles, seed and calibrations (`deploy`), the demo
models (`models/demo`), the bootstrap of Envoy (`envoy`). In a checkout they are where they are kept; a wheel brings
them in a folder of its own.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parents[1]
_IN_WHEEL = _HERE / "weir_files"
INSTALLED = _IN_WHEEL.is_dir()
"""Whether this runs from an installed wheel, whose folders belong to nobody's work."""
ROOT = _IN_WHEEL if INSTALLED else _HERE
"""The folder with `deploy`, `models` and `envoy` in it."""


def find(path: str) -> Path:
    """A file by its path from here or, where there is none, from `ROOT`."""
    here = Path(path)
    return here if here.exists() else ROOT / here
