"""How far every source has come: what makes a record of a journal be stored once, however late it comes again. Pure.

A source is a journal: who writes it, and its id. It sends in its order, so one number per source says which of its
records are there: the last one's epoch and sequence. Marks are a fold over the log, whose segments begin with what they
were then; so each checkpoint signs them, through the hash of the last record, and a segment can be read by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

MAX_SOURCES = 4096
"""Sources whose marks a new segment begins with: those that were heard of last. One that was silent for longer and
comes back leaves a gap of what it had sent before."""
MISSING = "missing"
Source = tuple[str, str]
"""The writer's service and instance, and its journal's id."""


class Mark(NamedTuple):
    """The last of a source's records: its epoch, 16 hex digits, and its sequence."""

    epoch: str
    sequence: int


class Origin(NamedTuple):
    """Where a record stood in its writer's journal."""

    source: str
    journal: str
    epoch: str
    sequence: int
    start: int = 1
    """Of a journal of which nothing is known: the first that it ever had."""


class Superseded(Exception):
    """A later epoch of the journal has been heard of: whoever sends this is not its owner any more, or has a copy."""


class _Origin(msgspec.Struct):
    journal: str
    epoch: str
    sequence: int


class _Mark(_Origin):
    source: str


class _Marks(msgspec.Struct):
    marks: list[_Mark] = []


class _Gap(msgspec.Struct):
    source: str
    journal: str
    epoch: str
    first: int
    last: int
    reason: str = MISSING


class Told(msgspec.Struct):
    """What a stored record says of sources."""

    source: str = ""
    origin: _Origin | None = None
    marks: _Marks | None = None
    gap: _Gap | None = None


class Marks:
    """The marks of a log, as of one of its records."""

    def __init__(self, known: Mapping[Source, Mark] | None = None) -> None:
        self._known: dict[Source, Mark] = dict(known or {})

    def __len__(self) -> int:
        """Sources."""
        return len(self._known)

    def copy(self) -> Marks:
        """One that changes by itself."""
        return Marks(self._known)

    def of(self, source: str, journal: str) -> Mark | None:
        """A source's; None where nothing was heard of it."""
        return self._known.get((source, journal))

    def missing(self, origin: Origin) -> range | None:
        """The sequences between a source's last record and this one; None: the record is there already.

        :raises Superseded: there are records of a later epoch.
        """
        mark = self._known.get((origin.source, origin.journal), Mark(origin.epoch, origin.start - 1))
        if origin.epoch < mark.epoch:
            raise Superseded
        if origin.epoch == mark.epoch and origin.sequence <= mark.sequence:
            return None
        # Of a later epoch, sequences may be used again: the machine lost its power, and the journal its end.
        return range(mark.sequence + 1, origin.sequence)

    def take(self, origin: Origin) -> None:
        """The record is in the log."""
        source = origin.source, origin.journal
        self._known.pop(source, None)  # the last one heard of stands last
        self._known[source] = Mark(origin.epoch, origin.sequence)

    def see(self, told: Told) -> None:
        """Fold one stored record."""
        if told.marks is not None:
            self._known = {(each.source, each.journal): Mark(each.epoch, each.sequence) for each in told.marks.marks}
        if told.gap is not None:
            gap = told.gap
            self.take(Origin(gap.source, gap.journal, gap.epoch, gap.last))
        if told.origin is not None:
            at = told.origin
            self.take(Origin(told.source, at.journal, at.epoch, at.sequence))

    def event(self) -> dict[str, Any]:
        """What a segment begins with."""
        newest = list(self._known.items())[-MAX_SOURCES:]
        return {"marks": [_plain(source, journal, mark) for (source, journal), mark in newest]}


def gap_event(origin: Origin, missing: range, reason: str) -> dict[str, Any]:
    """That these sequences are not in the log: before the record that came, or of it, for it was refused."""
    named = {"source": origin.source, "journal": origin.journal, "epoch": origin.epoch, "reason": reason}
    return named | {"first": missing[0], "last": missing[-1]}


def _plain(source: str, journal: str, mark: Mark) -> dict[str, Any]:
    return {"source": source, "journal": journal, "epoch": mark.epoch, "sequence": mark.sequence}
