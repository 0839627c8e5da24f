"""How states of the registry differ, by what each change between them did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """One resource in two states, as stored."""

    resource: str
    """Such as "aliases/weir-fast"."""
    before: str
    """Empty: it did not exist."""
    after: str
    """Empty: it does not exist."""


def fold(steps: Iterable[Difference]) -> list[Difference]:
    """What many changes did together, by resource; what came back to what it was is left out.

    :param steps: oldest first.
    """
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    for step in steps:
        first.setdefault(step.resource, step.before)
        last[step.resource] = step.after
    return [Difference(name, first[name], last[name]) for name in sorted(first) if first[name] != last[name]]


def backwards(differences: Iterable[Difference]) -> list[Difference]:
    """The way back."""
    return [Difference(each.resource, each.after, each.before) for each in differences]
