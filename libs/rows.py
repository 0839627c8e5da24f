"""Rows of a CSV file as inputs of a model that predicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_BOOLS = {"true": True, "1": True, "false": False, "0": False}


class RowsError(ValueError):
    """A file's rows do not fit the model; the message says which line or column."""


def parts_of(
    lines: Sequence[Sequence[str]], tensors: Sequence[Any], rows: int, *, skip_head: bool = False
) -> Iterator[dict[str, list[Any]]]:
    """Inputs for each `rows` rows of a CSV file. Pure.

    :param tensors: what the model takes: `name`, `datatype` and `shape` of each, and `columns` where one has them, by
        whose names a head puts the columns of a matrix in order.
    :param skip_head: the first line names columns of a matrix, which are in the model's order.
    :raises RowsError: the file does not fit them; the message says which line or column.
    """
    lines = [line for line in lines if line]
    if not lines:
        raise RowsError("the file has no rows")
    flat = {tensor.name: tensor for tensor in tensors if len(tensor.shape) == 1}
    head = [name.strip() for name in lines[0]]
    if flat and len(flat) == len(tensors):
        if set(head) == set(flat) and len(head) == len(flat):
            lines = lines[1:]
        elif len(flat) == 1:
            head = list(flat)
        else:
            raise RowsError(f"the first line must name the inputs: {','.join(flat)}")
        columns = [flat[name] for name in head]
    elif len(tensors) == 1 and len(tensors[0].shape) == 2:
        columns = [tensors[0]] * len(lines[0])
        names = [column.name for column in getattr(tensors[0], "columns", ())]
        words = not any(_is_value(each, tensors[0].datatype) for each in lines[0])
        if skip_head:
            lines = lines[1:]
        elif all(names) and names and (words or set(head) & set(names)):
            lines, columns = _in_order(lines[1:], head, names), [tensors[0]] * len(names)
        elif words:
            raise RowsError(
                f"the first line names columns ({','.join(head)[:60]}), and the model has no names for those of "
                f"{tensors[0].name!r}: put them in its order, and say so by --skip-head"
            )
    else:
        raise RowsError("a file of rows does not fit what this model takes; use --json")
    for start in range(0, len(lines), rows):
        table = [_row(start + n, line, columns) for n, line in enumerate(lines[start : start + rows], 1)]
        if flat:
            yield {tensor.name: [line[at] for line in table] for at, tensor in enumerate(columns)}
        else:
            yield {tensors[0].name: table}


def _row(number: int, line: Sequence[str], columns: Sequence[Any]) -> list[Any]:
    if len(line) != len(columns):
        raise RowsError(f"row {number} has {len(line)} columns, not {len(columns)}")
    for at, (text, tensor) in enumerate(zip(line, columns, strict=True), 1):
        if not _is_value(text, tensor.datatype):
            raise RowsError(f"row {number}, column {at}: {text[:40]!r} is no {tensor.datatype}")
    return [_value(text, tensor.datatype) for text, tensor in zip(line, columns, strict=True)]


def _is_value(text: str, datatype: str) -> bool:
    try:
        _value(text, datatype)
    except (ValueError, KeyError):
        return False
    return True


def _value(text: str, datatype: str) -> Any:
    if datatype == "BYTES":
        return text
    if datatype == "BOOL":
        return _BOOLS[text.strip().lower()]
    if "INT" in datatype:
        return int(text)
    return float(text or "nan")  # nothing between two commas is a missing value


def _in_order(lines: Sequence[Sequence[str]], head: Sequence[str], names: Sequence[str]) -> list[Sequence[str]]:
    """The rows with their columns as the model has them; what it does not take (a label, say) is left out."""
    missing = [name for name in names if name not in head]
    if missing or len(set(head)) < len(head):
        what = f"has no column {missing[0]!r}" if missing else "names a column twice"
        raise RowsError(f"the file {what}; the model takes {','.join(names)[:200]}")
    if not lines:
        raise RowsError("the file has no rows")
    at = [head.index(name) for name in names]
    for number, line in enumerate(lines, 1):
        if len(line) != len(head):
            raise RowsError(f"row {number} has {len(line)} columns, not {len(head)}")
    return [[line[each] for each in at] for line in lines]
