"""Medians, quantiles and tables of repeated measurements, and whether they meet their targets. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence


def percentile(values: Sequence[float], q: float) -> float:
    """The q-quantile (0 < q ≤ 1) by nearest rank: a value that was measured, never one between two.

    :raises ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(1, math.ceil(q * len(ordered) - 1e-9)) - 1]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and range as text: "2.10 (1.95–2.31)"."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each name over repeats that all have the same names."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]} if rows else {}


def in_calls(figures: Mapping[str, float], call_us: float) -> dict[str, float]:
    """Those that are times ("ms" or "us" is a word of the name), in calls of so many µs: what an hour at which the
    machine is slow does not change."""
    units = {"ms": 1e3, "us": 1.0}
    found = {}
    for name, value in figures.items():
        unit = next((units[word] for word in name.split("_") if word in units), None)
        if unit is not None:
            found[name] = round(value * unit / call_us, 3)
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An aligned table; the first column is text, the others are numbers."""
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "  " + "  ".join([first, *rest])

    return "\n".join([line(header), *(line(row) for row in rows)])


def number(value: float) -> float | None:
    """As JSON can say it: nan is null."""
    return None if math.isnan(value) or math.isinf(value) else round(value, 4)


def verdict(value: float, target: str) -> str:
    """ "met", "missed", or "not measured"."""
    if math.isnan(value):
        return "not measured"
    relation, _, bound = target.partition(" ")
    limit = float(bound)
    met = {"≤": value <= limit, "≥": value >= limit, "=": value == limit}[relation]
    return "met" if met else "missed"
