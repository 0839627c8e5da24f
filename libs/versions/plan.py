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

Where memory is bounded (`Room`), what is loaded and on its way stays within the bound:

- What fits beside the others comes. For what does not, those make room that were asked for longest ago, unwanted ones
  first: each is idle, was loaded and asked for last at least `quiet` seconds ago, and earlier than what comes. That it
  came to be wanted counts as being asked for once.
- So what is asked for stays, however many ask for something else; a version that left comes back only for who asked
  for it later than for whatever it takes the place of; and where nobody asks for anything, nothing moves.
- A version that takes more than was thought makes room in the same order; where all the others were asked for lately,
  by leaving itself. What it takes is known from then on.
- What takes more than the whole bound is refused.
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
    UNLOADED = 6


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
    MEMORY = "memory"  # it takes more than all versions together may
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
    memory: int = 0
    """Bytes that it takes, as far as that is known: those of its files, or what was measured."""


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
    memory: int = 0
    """See `Wanted`."""


@dataclass(frozen=True, slots=True)
class Room:
    """The memory that versions share."""

    bound: int
    """Bytes."""
    quiet: float
    """Seconds for which what makes room was loaded and not asked for."""
    used: Mapping[str, float]
    """When each version was asked for last, or came to be wanted."""
    leaving: int = 0
    """Bytes of what is being unloaded."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now; with nothing to do, when to ask again."""

    bring: tuple[Wanted, ...] = ()
    """To be begun now, the most urgent first."""
    unload: tuple[str, ...] = field(default=())
    evict: tuple[str, ...] = ()
    """To be unloaded for others."""
    defer: tuple[Wanted, ...] = ()
    """There is no room for these, which is news."""
    refuse: tuple[Wanted, ...] = ()
    """There will never be room for these."""
    wait: float = math.inf
    """Seconds; sooner when anything changes."""

    @property
    def rests(self) -> bool:
        """There is nothing to do now."""
        return not (self.bring or self.unload or self.evict or self.defer or self.refuse)


def next_plan(
    wanted: Sequence[Wanted],
    held: Mapping[str, Held],
    *,
    now: float,
    busy: Set[str],
    min_residency: float,
    room: Room | None = None,
) -> Plan:
    """What to do now. `busy` are the models that run something; a version in memory stays for `min_residency` seconds
    at least, and for so long after it was wanted last, unless it has to make room."""
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
    under_way = sum(each.state in UNDER_WAY for each in held.values())
    candidates.sort(key=lambda each: rank(each, held.get(each.model)))
    if room is not None:
        tight = _fit(candidates, held, by_name.keys(), room, under_way, now=now, busy=busy)
        waits.append(tight.wait)
        if not tight.rests:
            return tight
    elif candidates:
        return Plan(bring=_bring(candidates, under_way), wait=min(waits, default=math.inf))
    if under_way:
        return Plan(wait=min(waits, default=math.inf))
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


def _bring(candidates: Sequence[Wanted], under_way: int) -> tuple[Wanted, ...]:
    bring: list[Wanted] = []
    for each in candidates:
        if under_way + len(bring) < _places(each):
            bring.append(each)
    return tuple(bring)


def _fit(
    candidates: Sequence[Wanted],
    held: Mapping[str, Held],
    wanted: Set[str],
    room: Room,
    under_way: int,
    *,
    now: float,
    busy: Set[str],
) -> Plan:
    """Which of the candidates come, and what leaves for them or because there is too much already."""
    loaded = [each for each in held.values() if each.state is State.READY]
    free = room.bound - sum(each.memory for each in held.values() if each.state in (State.READY, *UNDER_WAY))
    idle = [each for each in loaded if not each.fixed and each.model not in busy]
    if free < 0 and loaded:
        evict = _leave(sorted(idle, key=lambda each: _worth(each, wanted, room, now)), -free)
        return Plan(evict=evict, wait=_LOOK_AGAIN)
    refuse = tuple(each for each in candidates if each.memory > room.bound)
    if refuse:
        return Plan(refuse=refuse)
    # First who was asked for last: it is for them that the others left.
    urgent = sorted(candidates, key=lambda each: -room.used.get(each.model, -math.inf))
    fits: list[Wanted] = []
    tight: list[Wanted] = []
    at_once = free - room.leaving
    for each in urgent:
        if each.memory > free:
            tight.append(each)
            continue
        free -= each.memory  # and kept for it until there is room
        if each.memory <= at_once:
            fits.append(each)
            at_once -= each.memory
    bring = _bring(fits, under_way)
    if bring:
        return Plan(bring=bring)
    wait = math.inf
    for each in tight:
        mine = room.used.get(each.model, -math.inf)
        older = [have for have in loaded if not have.fixed and room.used.get(have.model, -math.inf) < mine]
        ready = [have for have in older if have.model not in busy and _rest(have, room, now) <= 0]
        evict = _leave(sorted(ready, key=lambda have: _worth(have, wanted, room, now)), each.memory - free)
        if evict:
            return Plan(evict=evict)
        rests = (_LOOK_AGAIN if have.model in busy else _rest(have, room, now) for have in older if have not in ready)
        wait = min((wait, *rests))
    return Plan(defer=tuple(each for each in tight if each.model not in held), wait=wait)


def _worth(held: Held, wanted: Set[str], room: Room, now: float) -> tuple[bool, bool, float, str]:
    """The least goes first: of those that nobody asked for lately, who is not wanted or was asked for longest ago; else
    who came last."""
    used = room.used.get(held.model, -math.inf)
    lately = _rest(held, room, now) > 0
    return lately, held.model in wanted, -held.since if lately else used, held.model


def _rest(held: Held, room: Room, now: float) -> float:
    """Seconds until it may make room."""
    return max(held.since, room.used.get(held.model, -math.inf)) + room.quiet - now


def _leave(candidates: Sequence[Held], needed: int) -> tuple[str, ...]:
    """The first of them that take so much together; none where all do not."""
    found: list[str] = []
    for each in candidates:
        if needed <= 0:
            break
        if each.memory:
            found.append(each.model)
            needed -= each.memory
    return tuple(found) if needed <= 0 else ()


def rank(wanted: Wanted, begun: Held | None) -> tuple[bool, bool, int, int, str]:
    """Smaller goes first."""
    return not wanted.first, not wanted.served, begun.attempts if begun else 0, -wanted.wishes, wanted.model


def _places(wanted: Wanted) -> int:
    """How many may be on their way with it: the last place is for rollbacks, the last but one for what aliases give."""
    return MOST_UNDER_WAY - (not wanted.first) - (not (wanted.first and wanted.served))


def forgotten(wanted: Sequence[Wanted], held: Mapping[str, Held]) -> tuple[str, ...]:
    """Failed and unloaded ones that nobody wants any more: whoever wants them later is not to be told of an old
    failure."""
    names = {each.model for each in wanted}
    return tuple(
        name
        for name, each in held.items()
        if each.state in (State.FAILED, State.UNLOADED) and name not in names and not each.fixed
    )


def settled(wanted: Sequence[Wanted], held: Mapping[str, Held]) -> bool:
    """Whether the process may say that it is there: it can serve something, nothing is wanted of it, or all that is
    wanted has been tried and failed or has no room, which is for all to see then."""
    states = [held[each.model].state if each.model in held else None for each in wanted]
    if any(each.state is State.READY for each in held.values()):
        return True
    return all(state in (State.FAILED, State.UNLOADED) for state in states)


def _is(wanted: Wanted | None, held: Held) -> bool:
    return wanted is not None and wanted.digest == held.digest


def _pause(wanted: Wanted, held: Held, now: float) -> float:
    """Seconds until it is to be loaded (again); infinity while that is of no use."""
    if held.state is State.UNLOADED:
        return 0.0
    if held.state is not State.FAILED:
        return math.inf
    if held.basis != wanted.basis:
        return 0.0
    if held.fault is None or held.fault not in _PASSING:
        return math.inf
    first, longest = _PASSING[held.fault]
    return held.since + min(longest, first * 2.0 ** (min(held.attempts, 16) - 1)) - now
