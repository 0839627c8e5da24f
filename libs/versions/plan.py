"""What a process does next to have ready what the registry wants. Pure: times are seconds on any steady clock.

- Several versions are fetched at a time, and loaded one after the other. What aliases give goes first, of
  these what was served here before (a rollback), then what more ask for. Places are kept for these: no number of
  candidates makes a rollback wait for their files.
- Nothing is unloaded while something can be loaded or is on its way; then what nobody wants goes, once it has been in
  memory and out of demand for a while and runs nothing.
- A version that failed is tried again when what its failure rests on has changed (its record, its namespace's trust
  policy, its safety policy, the rollouts that want it), or after a growing pause when the cause may pass: by itself, or
  because somebody repairs a damaged file in the blob store, which costs a download to see and is tried less often. A
  signature or a digest of the record that does not hold never passes by itself.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

_LOOK_AGAIN = 1.0  # seconds; at what is to go and still runs something

MOST_UNDER_WAY = 4
"""Versions on their way at a time."""


class State(enum.IntEnum):
    """How far a version is. The numbers equal `weir.registry.v1.LoadState`."""

    FETCHING = 1
    VERIFYING = 2
    LOADING = 3
    READY = 4
    FAILED = 5


UNDER_WAY = frozenset((State.FETCHING, State.VERIFYING, State.LOADING))


class Fault(enum.StrEnum):
    """Why a version is not served; the label of a metric."""

    SIGNATURE = "signature"  # it is not signed as its namespace demands
    DIGEST = "digest"  # its content is not what the record says
    BLOB = "blob"  # a file in the blob store is not what the record says
    POLICY = "policy"  # its safety policy is not there
    SOURCE = "source"  # its files are where nobody fetches from
    FETCH = "fetch"  # the blob store lacks a file or does not answer
    DISK = "disk"  # the local cache cannot hold it
    LOAD = "load"  # the loader refuses it
    ENGINE = "engine"  # the loader was not there


# The first and the longest pause before a version that failed for this reason is tried again, seconds.
_PASSING = {Fault.FETCH: (1.0, 60.0), Fault.DISK: (1.0, 60.0), Fault.ENGINE: (1.0, 60.0), Fault.BLOB: (60.0, 600.0)}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A version that the registry wants here."""

    model: str
    digest: str
    """Its content's."""
    basis: str
    """All that the decision to load it rests on, as text; a failure is tried again when it changes."""
    first: bool = False
    """An alias gives it."""
    served: bool = False
    """This content was served here before."""
    wishes: int = 0
    """Aliases and rollouts that ask for it."""


@dataclass(frozen=True, slots=True)
class Held:
    """A version that was begun."""

    model: str
    state: State
    digest: str
    basis: str = ""
    since: float = 0.0
    """When it came to be in this state."""
    wanted_until: float = 0.0
    """When it was last wanted; requests that were on their way to it then may still arrive."""
    fixed: bool = False
    """Configured, not wanted by the registry: it stays."""
    fault: Fault | None = None
    detail: str = ""
    attempts: int = 0
    """Failures in a row."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now; with nothing to do, when to ask again."""

    bring: tuple[Wanted, ...] = ()
    """To be begun now, the most urgent first."""
    unload: tuple[str, ...] = field(default=())
    wait: float = math.inf
    """Seconds; sooner when anything changes."""


def next_plan(
    wanted: Sequence[Wanted], held: Mapping[str, Held], *, now: float, busy: Set[str], min_residency: float
) -> Plan:
    """What to do now. `busy` are the models that run something; a version in memory stays for `min_residency` seconds
    at least, and for so long after it was wanted last."""
    by_name = {each.model: each for each in wanted}
    waits: list[float] = []
    candidates: list[Wanted] = []
    for each in wanted:
        begun = held.get(each.model)
        pause = 0.0 if begun is None else _pause(each, begun, now)
        if pause <= 0:
            candidates.append(each)
        else:
            waits.append(pause)
    under_way = [each for each in held.values() if each.state in UNDER_WAY]
    if candidates or under_way:
        bring: list[Wanted] = []
        for each in sorted(candidates, key=lambda each: rank(each, held.get(each.model))):
            if len(under_way) + len(bring) < _places(each):
                bring.append(each)
        return Plan(bring=tuple(bring), wait=min(waits, default=math.inf))
    unload: list[str] = []
    for name, have in held.items():
        if have.state is not State.READY or have.fixed or _is(by_name.get(name), have):
            continue
        replaced = name in by_name  # by other content of the same name
        left = 0.0 if replaced else max(have.since, have.wanted_until) + min_residency - now
        if left > 0 or name in busy:
            waits.append(max(left, _LOOK_AGAIN if name in busy else 0.0))
        else:
            unload.append(name)
    return Plan(unload=tuple(sorted(unload)), wait=min(waits, default=math.inf))


def rank(wanted: Wanted, begun: Held | None) -> tuple[bool, bool, int, int, str]:
    """Smaller goes first."""
    return not wanted.first, not wanted.served, begun.attempts if begun else 0, -wanted.wishes, wanted.model


def _places(wanted: Wanted) -> int:
    """How many may be on their way with it: the last place is for rollbacks, the last but one for what aliases give."""
    return MOST_UNDER_WAY - (not wanted.first) - (not (wanted.first and wanted.served))


def forgotten(wanted: Sequence[Wanted], held: Mapping[str, Held]) -> tuple[str, ...]:
    """Failed ones that nobody wants any more: whoever wants them later is not to be told of an old failure."""
    names = {each.model for each in wanted}
    return tuple(
        name for name, each in held.items() if each.state is State.FAILED and name not in names and not each.fixed
    )


def settled(wanted: Sequence[Wanted], held: Mapping[str, Held]) -> bool:
    """Whether the process may say that it is there: it can serve something, nothing is wanted of it, or all that is
    wanted has been tried and failed, which is for all to see then."""
    states = [held[each.model].state if each.model in held else None for each in wanted]
    if any(each.state is State.READY for each in held.values()):
        return True
    return all(state is State.FAILED for state in states)


def _is(wanted: Wanted | None, held: Held) -> bool:
    return wanted is not None and wanted.digest == held.digest


def _pause(wanted: Wanted, held: Held, now: float) -> float:
    """Seconds until it is to be loaded (again); infinity while that is of no use."""
    if held.state is not State.FAILED:
        return math.inf
    if held.basis != wanted.basis:
        return 0.0
    if held.fault is None or held.fault not in _PASSING:
        return math.inf
    first, longest = _PASSING[held.fault]
    return held.since + min(longest, first * 2.0 ** (min(held.attempts, 16) - 1)) - now
