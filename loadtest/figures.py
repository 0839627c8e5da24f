"""Medians, quantiles, ratios and tables of repeated measurements, whether they meet their targets, and whether they can
be believed. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise


class NothingFoundError(RuntimeError):
    """There is nothing to give a figure of."""


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


def around(marks: Sequence[float]) -> list[float]:
    """What held during each window, of what was measured before the first, between them and after the last: the mean
    of the two on either side. One fewer than the marks."""
    return [(before + after) / 2 for before, after in pairwise(marks)]


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Pair by pair, of what was measured side by side: a machine whose speed changes from minute to minute changes both
    of a pair, so that their ratio stays; not so that of two medians.

    :raises ValueError: they are no pairs.
    """
    return [one / other for one, other in zip(above, below, strict=True)]


def needed(value: float, what: str) -> float:
    """The value, a number of what a bench is about.

    :raises NothingFoundError: there is none of it.
    """
    if not value > 0:
        raise NothingFoundError(f"no {what}")
    return value


def faults(
    figures: Mapping[str, float], targets: Mapping[str, str], failed: Mapping[str, str], left_out: Collection[str] = ()
) -> dict[str, str]:
    """Why a bench cannot be believed, by part or figure; nothing when it can.

    :param failed: the parts that found nothing or were refused, and why.
    :param left_out: what is not measured here, as was said.
    """
    nothing = {
        name: "not measured"
        for name in targets
        if name not in left_out and not math.isfinite(figures.get(name, math.nan))
    }
    return nothing | dict(failed)


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
