"""What is committed together: records as they come, the lines that they become, and where they lie then. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from libs.auditlog.chain import encode_entry
from libs.auditlog.frame import Draft, Sealed
from libs.auditlog.marks import MISSING, Marks, Origin, Superseded, gap_event


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a record lies."""

    sequence: int
    duplicate: bool = False
    """It was there already; of a journal's record nobody knows where."""


class Incoming(NamedTuple):
    """A record to be stored."""

    id: str
    record: bytes | Sealed | Draft
    """Canonical JSON, or what is sealed once its place in the chain is known; a draft before there is a key."""
    origin: Origin | None = None
    """Where it stands in its writer's journal, which says whether it is there; None: its id does."""
    refused: str = ""
    """Why it cannot be stored: a gap that says so takes its place in the journal."""


@dataclass(slots=True)
class Group:
    """The lines of a commit, and where they lead."""

    prev: bytes
    sequence: int
    marks: Marks
    own: Callable[[str, int, dict[str, Any]], bytes]
    """Makes a record of the log's own: of a kind, with a number, of an event."""
    lines: list[bytes] = field(default_factory=list)

    def add(self, record: bytes | Sealed | Draft) -> int:
        """One more; returns its number."""
        self.sequence += 1
        if isinstance(record, Draft):
            raise TypeError("a draft has not been sealed")
        if isinstance(record, Sealed):
            record = record.record(self.prev, self.sequence)
        self.prev, line = encode_entry(self.prev, self.sequence, record)
        self.lines.append(line)
        return self.sequence

    def follow(self, incoming: Incoming, origin: Origin) -> Stored | None:
        """Put a journal's record behind what is known of the journal, and a gap where something is missing."""
        try:
            missing = self.marks.missing(origin)
        except Superseded:
            return None
        if missing is None:
            return Stored(0, duplicate=True)
        if missing:
            self._gap(origin, missing, MISSING)
        self.marks.take(origin)
        if incoming.refused:
            return Stored(self._gap(origin, range(origin.sequence, origin.sequence + 1), incoming.refused))
        return Stored(self.add(incoming.record))

    def _gap(self, origin: Origin, missing: range, reason: str) -> int:
        return self.add(self.own("gap", self.sequence + 1, gap_event(origin, missing, reason)))


def header_of(record: bytes | Sealed | Draft) -> bytes:
    """What is clear of it, at least its id and time."""
    draft = record.draft if isinstance(record, Sealed) else record
    return draft.header if isinstance(draft, Draft) else draft
