"""What a version may declare of values that it was not made for."""

from __future__ import annotations

import math
from collections.abc import Iterator

from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks.bounds import check_choice, check_count
from libs.resources.checks.faults import Fault, check_text

_FLOATS = {"FP16": 65504.0, "BF16": 3.3895313892515355e38, "FP32": 3.4028234663852886e38, "FP64": math.inf}
"""The greatest number of each."""
_INTEGERS = {f"{kind}{bits}": bits for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)}
_MAX_RULES = 4096
_MAX_COLUMNS = 65_536
_MAX_CATEGORIES = 4096
_MAX_TEXT = 256


def check_rules(path: str, tensor: pb.TensorSpec, *, rows: bool) -> Iterator[Fault]:
    """Every fault of an input's rules. `rows`: the first dimension is that of the rows."""
    yield from check_count(f"{path}.rules", tensor.rules, _MAX_RULES)
    seen: set[int] = set()
    for number, rule in enumerate(tensor.rules[:_MAX_RULES]):
        field = f"{path}.rules[{number}]"
        yield from _check_columns(f"{field}.columns", rule, tensor, seen, rows)
        yield from _check_nan(field, rule, tensor.datatype)
        yield from _check_categories(field, rule, tensor.datatype)
        yield from _check_range(field, rule, tensor.datatype)


def _check_columns(
    field: str, rule: pb.ValueRule, tensor: pb.TensorSpec, seen: set[int], rows: bool
) -> Iterator[Fault]:
    if not rule.columns:
        if len(tensor.rules) > 1:
            yield Fault(field, "must name columns where there are several rules")
        return
    yield from check_count(field, rule.columns, _MAX_COLUMNS)
    size = tensor.shape[-1] if len(tensor.shape) > int(rows) else -1
    if size < 0:
        yield Fault(field, "must be empty where the input has no last dimension of known size beside the rows")
        return
    for place, column in enumerate(rule.columns[:_MAX_COLUMNS]):
        if column >= size:
            yield Fault(f"{field}[{place}]", f"must be below {size}")
        elif column in seen:
            yield Fault(f"{field}[{place}]", f"column {column} appears twice")
        seen.add(column)


def _check_nan(field: str, rule: pb.ValueRule, datatype: str) -> Iterator[Fault]:
    yield from check_choice(f"{field}.nan", rule.nan, ("accept", "reject", "default", ""))
    if rule.nan in ("reject", "default") and datatype not in _FLOATS:
        yield Fault(f"{field}.nan", f"{datatype} has no NaN")
    if rule.nan == "default":
        yield from _check_number(f"{field}.default_value", rule.default_value, datatype)
    elif rule.default_value:
        yield Fault(f"{field}.default_value", 'is used only where nan is "default"')


def _check_categories(field: str, rule: pb.ValueRule, datatype: str) -> Iterator[Fault]:
    yield from check_choice(f"{field}.unseen", rule.unseen, ("accept", "reject", "missing", ""))
    if rule.unseen in ("reject", "missing") and not rule.categories:
        yield Fault(f"{field}.categories", "is required")
    if rule.unseen == "missing" and datatype in _INTEGERS:
        yield Fault(f"{field}.unseen", f"{datatype} has no missing value")
    if rule.categories and datatype == "BOOL":
        yield Fault(f"{field}.categories", "BOOL has none")
    yield from check_count(f"{field}.categories", rule.categories, _MAX_CATEGORIES)
    for number, text in enumerate(rule.categories[:_MAX_CATEGORIES]):
        where = f"{field}.categories[{number}]"
        if datatype == "BYTES":
            yield from check_text(where, text, _MAX_TEXT)
            continue
        try:
            value = int(text) if datatype in _INTEGERS else float(text)
        except ValueError:
            yield Fault(where, f"must be a number of {datatype}")
        else:
            yield from _check_number(where, value, datatype)


def _check_range(field: str, rule: pb.ValueRule, datatype: str) -> Iterator[Fault]:
    yield from check_choice(f"{field}.beyond", rule.beyond, ("accept", "reject", "clip", ""))
    ends = [name for name in ("min", "max") if rule.HasField(name)]  # type: ignore[arg-type]
    if rule.beyond in ("reject", "clip") and not ends:
        yield Fault(f"{field}.beyond", "min or max is required")
    for name in ends:
        yield from _check_number(f"{field}.{name}", getattr(rule, name), datatype)
    if len(ends) == 2 and rule.min > rule.max:
        yield Fault(f"{field}.max", "must not be below min")
    if ends and rule.categories:
        yield Fault(f"{field}.categories", "a rule has categories or a range")


def _check_number(field: str, value: float, datatype: str) -> Iterator[Fault]:
    """A number that the datatype has, or that can be rounded to one."""
    if datatype in _FLOATS:
        if not (math.isfinite(value) and abs(value) <= _FLOATS[datatype]):
            yield Fault(field, f"must be a number of {datatype}")
    elif (bits := _INTEGERS.get(datatype)) is not None:
        low, high = (0, 2**bits) if datatype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        if not (low <= value < high and value == int(value)):
            yield Fault(field, f"must be a whole number of {datatype}")
    else:
        yield Fault(field, f"{datatype} has no numbers")
