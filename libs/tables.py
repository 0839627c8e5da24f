"""Tables that fit: what is read is never cut.

A cell that is too long goes on in the next line, broken at blanks alone: a name, a version, a time or a number with its
unit is whole, and so is every heading (but for words beyond `_LONGEST`, which no name can be). Where even that is too
wide for the terminal, the columns that a table names as its least important are left out, and a line says so. Numbers
end in one column.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

WIDTH = 100
"""Columns of a table in a pipe."""
_GAP = 2
_LONGEST = 64
_AMOUNT = r"[-+≥$ ]*\d[\d.,]*( ?(%|ms|s|min|h|d|B|kB|MB|GB)|[hm]\d\d[ms])?"
_WHOLE = re.compile(rf"{_AMOUNT}|\d\d-\d\d \d\d:\d\d")
"""A number with its unit, and a time."""
_NUMBER = re.compile(rf"{_AMOUNT}( / \d[\d.,]*)?")
_NO_NUMBER = frozenset(("", "-", "?", "free", "unlimited"))
"""What stands between numbers."""


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
    right = [_is_of_numbers(column[1:]) for column in zip(*picked, strict=True)]
    heading, *body = ([*_lines(row, widths, right)] for row in picked)
    return Layout(heading, [line for lines in body for line in lines], gone)


def terminal_width() -> int:
    """Columns of the terminal, or `WIDTH` in a pipe."""
    return shutil.get_terminal_size((WIDTH, 0)).columns if sys.stdout.isatty() else WIDTH


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


def _is_of_numbers(cells: Sequence[str]) -> bool:
    numbers = [cell for cell in cells if cell not in _NO_NUMBER]
    return bool(numbers) and all(map(_NUMBER.fullmatch, numbers))


def _lines(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    cells = [
        [text] if len(text) <= width else textwrap.wrap(text, width, break_on_hyphens=False)
        for text, width in zip(row, widths, strict=True)
    ]
    for parts in zip_longest(*cells, fillvalue=""):
        aligned = zip(parts, widths, right, strict=True)
        yield (" " * _GAP).join(f"{part:{'>' if numbers else '<'}{width}}" for part, width, numbers in aligned).rstrip()


def _longest_word(text: str) -> int:
    return min(_LONGEST, max(map(len, [text] if _WHOLE.fullmatch(text) else text.split()), default=0))
