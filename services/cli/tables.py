"""Tables that fit: what is read is never cut.

A cell that is too long goes on in the next line, broken at blanks alone: a name, a version, a time or a number is
whole, and so is every heading (but for words beyond `_LONGEST`, which no name can be). Where even that is too wide for
the terminal, the columns that a table names as its least important are left out, and a line says so.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

_GAP = 2
_LONGEST = 64


class Layout(NamedTuple):
    """Lines of a table."""

    headings: list[str]
    body: list[str]
    gone: list[str]
    """The headings of columns that were left out."""


def layout(rows: Sequence[Sequence[str]], width: int | None, least: Sequence[str] = ()) -> Layout:
    """How a table is laid out.

    :param rows: the headings, then the cells; all of one length, and without line breaks.
    :param width: columns of the terminal; None: as wide as it comes.
    :param least: headings of what may be left out, the least important first.
    """
    shown, gone = list(range(len(rows[0]))), list[str]()
    left = [rows[0].index(name) for name in least if name in rows[0]]
    while width is not None and left and _least_width(rows, shown) > width:
        gone.append(rows[0][left[0]])
        shown.remove(left.pop(0))
    picked = [[row[index] for index in shown] for row in rows]
    widths = _widths(picked, width)
    return Layout(_lines(picked[0], widths), [line for row in picked[1:] for line in _lines(row, widths)], gone)


def _least_width(rows: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    return sum(max(_longest_word(row[index]) for row in rows) for index in shown) + _GAP * (len(shown) - 1)


def _widths(rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Each column as wide as its longest cell; where that is too much, the widest give first, each down to its longest
    word."""
    columns = list(zip(*rows, strict=True))
    wanted = [max(map(len, column)) for column in columns]
    if width is None:
        return wanted
    widths = [max(map(_longest_word, column)) for column in columns]
    spare = width - _GAP * (len(widths) - 1) - sum(widths)
    by_need = sorted(range(len(widths)), key=lambda index: wanted[index] - widths[index])
    for place, index in enumerate(by_need):
        given = max(0, min(wanted[index] - widths[index], spare // (len(by_need) - place)))
        widths[index] += given
        spare -= given
    return widths


def _lines(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    cells = [
        [text] if len(text) <= width else textwrap.wrap(text, width, break_on_hyphens=False)
        for text, width in zip(row, widths, strict=True)
    ]
    return [
        (" " * _GAP).join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()
        for parts in zip_longest(*cells, fillvalue="")
    ]


def _longest_word(text: str) -> int:
    return min(_LONGEST, max(map(len, text.split()), default=0))
