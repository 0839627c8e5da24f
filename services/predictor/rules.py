"""What becomes of values that a version was not made for: NaN, unseen categories, numbers beyond a range. Pure.

Its manifest declares it by input and column (`ValueRule` in `weir/registry/v1/registry.proto`); what it is silent on,
the model gets as it was sent. A rule judges what was sent. Rejected is the request, by tensor, row and column, without
its values; what is put in a value's place is flagged in the answer, and rejected where the caller takes nothing but the
version's own answer to its own question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from weir.registry.v1 import registry_pb2

from libs.errors import Reason, WeirError
from services.predictor.port import Tensors
from services.predictor.tensors import DTYPES

DEFAULT = "default_value"
MISSING = "missing_category"
CLIPPED = "clipped"
"""Flags of answers: what was put in a value's place."""
_REJECT = ""
_NO_NAN = "NaN is not accepted"
_NO_CATEGORY = "it is no category that the model was made with"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class _Step:
    """One thing that is looked for in some columns of an input.

    :ivar flag: of what is put in its place; `_REJECT`: the request is refused.
    :ivar columns: of the last dimension.
    :ivar bad: which of these values it is.
    :ivar put: what takes their place.
    :ivar limits: what is wrong with them, of each column or of all.
    """

    flag: str
    columns: Sequence[int] | slice
    bad: Callable[[Array], Array]
    put: Callable[[Array], Array]
    limits: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Input:
    name: str
    datatype: str
    steps: tuple[_Step, ...]


class Rules:
    """Of one version."""

    def __init__(self, spec: registry_pb2.PredictionSpec) -> None:
        """:raises ValueError, OverflowError: a declaration that the registry refuses."""
        self._rows = spec.max_rows > 0
        self._inputs = tuple(
            _Input(each.name, each.datatype, tuple(_steps(each))) for each in spec.inputs if len(each.rules)
        )

    def apply(self, inputs: Tensors, *, replace: bool) -> tuple[Tensors, tuple[str, ...]]:
        """The inputs as the model gets them, and flags of what was put in place of something. What they hold is not
        changed.

        :param replace: whether anything may be put in place of a value; else it is rejected.
        :raises WeirError: INVALID_REQUEST with the element: a value is not accepted.
        """
        if not self._inputs:
            return inputs, ()
        flags: dict[str, None] = {}
        for each in self._inputs:
            sent = inputs[each.name]
            made = self._applied(each, _widened(sent) if each.datatype == "BF16" else sent, flags, replace)
            if made is not None:
                inputs = {**inputs, each.name: _narrowed(made) if each.datatype == "BF16" else made}
        return inputs, tuple(flags)

    def _applied(self, declared: _Input, sent: Array, flags: dict[str, None], replace: bool) -> Array | None:
        """A changed copy; None: it stays as it is."""
        made: Array | None = None
        for step in declared.steps:
            given = sent[..., step.columns]
            bad = step.bad(given)
            if not bad.any():
                continue
            if step.flag == _REJECT or not replace:
                raise self._refused(declared.name, step, bad)
            flags[step.flag] = None
            made = sent.copy() if made is None else made
            part = made[..., step.columns]
            np.copyto(part, step.put(given), where=bad)
            made[..., step.columns] = part
        return made

    def _refused(self, name: str, step: _Step, bad: Array) -> WeirError:
        *place, last = np.unravel_index(int(bad.argmax()), bad.shape)
        column = int(last) if isinstance(step.columns, slice) else step.columns[int(last)]
        limit = step.limits[0 if len(step.limits) == 1 else int(last)]
        at = [*map(int, place), column]
        if not self._rows:
            where = f"element {at}"
        elif len(at) > 2:
            where = f"row {at[0]}, element {at[1:]}"
        else:
            where = f"row {at[0]}" + (f", column {at[1]}" if len(at) > 1 else "")
        message = f"input {name[:64]!r}: {where}: {limit}"
        if step.flag != _REJECT:
            message += "; nothing is put in its place where degradable is false"
        return WeirError(Reason.INVALID_REQUEST, message, limit=f"{name}[{','.join(map(str, at))}]")


def _steps(declared: registry_pb2.TensorSpec) -> Iterable[_Step]:
    """Rules that differ in columns and numbers alone are one step: a hundred features cost what one does."""
    datatype = declared.datatype
    nan: dict[str, list[registry_pb2.ValueRule]] = defaultdict(list)
    beyond: dict[str, list[registry_pb2.ValueRule]] = defaultdict(list)
    for rule in declared.rules:
        if rule.nan in ("reject", "default"):
            nan[_REJECT if rule.nan == "reject" else DEFAULT].append(rule)
        if rule.beyond in ("reject", "clip"):
            beyond[_REJECT if rule.beyond == "reject" else CLIPPED].append(rule)
    for flag, rules in nan.items():
        values = _by_column(rules, [rule.default_value for rule in rules], datatype)
        yield _Step(flag, _columns(rules), np.isnan, _always(values), (_NO_NAN,))
    for rule in declared.rules:
        if rule.unseen in ("reject", "missing"):
            flag = _REJECT if rule.unseen == "reject" else MISSING
            missing = np.array(b"", object) if datatype == "BYTES" else np.array(np.nan, _working(datatype))
            yield _Step(flag, _columns([rule]), _unseen(rule, datatype), _always(missing), (_NO_CATEGORY,))
    for flag, rules in beyond.items():
        least, most = _ends(datatype)
        low = _by_column(rules, [rule.min if rule.HasField("min") else least for rule in rules], datatype)
        high = _by_column(rules, [rule.max if rule.HasField("max") else most for rule in rules], datatype)
        limits = [limit for rule in rules for limit in [_range(rule)] * max(1, len(rule.columns))]
        yield _Step(flag, _columns(rules), _outside(low, high), _clipped(low, high), limits)


def _columns(rules: Sequence[registry_pb2.ValueRule]) -> Sequence[int] | slice:
    found = [column for rule in rules for column in rule.columns]
    return found or slice(None)


def _by_column(rules: Sequence[registry_pb2.ValueRule], values: Sequence[float], datatype: str) -> Array:
    """A value for each column of the rules, or one for all."""
    return np.concatenate(
        [np.full(max(1, len(rule.columns)), _of(datatype, value)) for rule, value in zip(rules, values, strict=True)]
    )


def _always(values: Array) -> Callable[[Array], Array]:
    return lambda _: values


def _outside(low: Array, high: Array) -> Callable[[Array], Array]:
    return lambda given: (given < low) | (given > high)  # of NaN both are false


def _clipped(low: Array, high: Array) -> Callable[[Array], Array]:
    return lambda given: np.clip(given, low, high)


def _unseen(rule: registry_pb2.ValueRule, datatype: str) -> Callable[[Array], Array]:
    if datatype == "BYTES":
        texts = frozenset(each.encode() for each in rule.categories)

        def none_of_texts(given: Array) -> Array:
            known = np.fromiter(map(texts.__contains__, given.flat), np.bool_, given.size)
            return ~known.reshape(given.shape)

        return none_of_texts
    number = int if _working(datatype).kind in "iu" else float
    known = np.sort(np.array([_of(datatype, number(each)) for each in rule.categories]))

    def none_of_numbers(given: Array) -> Array:
        place = np.minimum(known.searchsorted(given), len(known) - 1)
        found = known[place] != given
        return found & ~np.isnan(given) if given.dtype.kind == "f" else found

    return none_of_numbers


def _range(rule: registry_pb2.ValueRule) -> str:
    if rule.HasField("min") and rule.HasField("max"):
        return f"it must be between {rule.min:.15g} and {rule.max:.15g}"
    return f"it must be at least {rule.min:.15g}" if rule.HasField("min") else f"it must be at most {rule.max:.15g}"


def _working(datatype: str) -> np.dtype[Any]:
    """What it is computed with."""
    return np.dtype(np.float32) if datatype == "BF16" else DTYPES[datatype]


def _ends(datatype: str) -> tuple[float, float]:
    dtype = _working(datatype)
    return (-np.inf, np.inf) if dtype.kind == "f" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def _of(datatype: str, value: float) -> Any:
    """A number as the datatype has it."""
    dtype = _working(datatype)
    if dtype.kind != "f":
        return dtype.type(int(value))
    return _widened(_narrowed(np.array([value], dtype)))[0] if datatype == "BF16" else dtype.type(value)


def _widened(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _narrowed(array: Array) -> Array:
    """Float32 to the bits of BF16, to the nearest, of two the even one; NaN stays NaN."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), bits >> 16 | 0x40, rounded).astype(np.uint16)
