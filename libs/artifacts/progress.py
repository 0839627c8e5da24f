"""How far a push is: bytes, rate and time left, in one line. Pure."""

from __future__ import annotations

_WINDOW = 5.0
"""Seconds that a rate looks back: long enough to be calm, short enough to notice that a link has become slow."""


def size_in_words(count: float) -> str:
    """ "512 B", "2.04 MB"."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB" if size < 999.5 else f"{size:.0f} GB"
