"""Metrics pages in Prometheus' text format, as values. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class Sample(NamedTuple):
    """One series' value."""

    labels: Mapping[str, str]
    value: float


Page = Mapping[str, list[Sample]]
"""Samples by the name that they are exposed under, so a counter's with `_total`."""


def parse(text: str) -> dict[str, list[Sample]]:
    """The samples of a page; comments and what is no sample are passed over."""
    found: dict[str, list[Sample]] = {}
    for line in text.splitlines():
        if line.startswith("#") or (match := _SAMPLE.match(line)) is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        labels = {name: _ESCAPED.sub(_unescaped, said) for name, said in _LABEL.findall(match[2] or "")}
        found.setdefault(match[1], []).append(Sample(labels, value))
    return found


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
