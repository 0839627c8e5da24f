"""Counts, while a log is read, what is sealed and what of it was erased. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from libs.auditlog.chain import Entry
from libs.auditlog.frame import FrameError, header_of, take_apart
from libs.auditlog.keys import Verifier
from libs.auditlog.tombstones import TombstoneError, Tombstones, is_tombstone, read
from libs.sealing.scope import KeyName

_TOLD = 8
"""Faults of one kind that are told one by one."""


class Counts(Protocol):
    """A `verify.Report`."""

    sealed: int
    erased: int
    tombstones: int
    faults: list[str]
    notes: list[str]


class Graves:
    """Sees every record once, in order; memory grows with the keys, not with the records."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._records: dict[KeyName, int] = {}
        self._tombstones = Tombstones()
        self._faults: list[str] = []

    def look(self, entry: Entry) -> None:
        """One more record."""
        record = entry.record
        try:
            if take_apart(record) is not None:
                name = header_of(record).name
                _ = name.serial
                self._records[name] = self._records.get(name, 0) + 1
            elif is_tombstone(record) and (found := read(entry.sequence, record, self._verifier)):
                self._tombstones.add(found)
        except (FrameError, ValueError) as error:
            self._faults.append(f"record {entry.sequence}: {error}")

    def judge(self, report: Counts, *, keys: Collection[str] | None, buried: Iterable[tuple[int, bytes]]) -> None:
        """Fill the report; parameters as of `verify_directory`."""
        report.sealed = sum(self._records.values())
        report.tombstones = self._tombstones.count
        self._faults += self._learn(buried)
        lost, back = [], []
        for name, records in self._records.items():
            grave = self._tombstones.covering(name)
            there = keys is None or name.id in keys
            if grave is not None:
                report.erased += records
                if keys is not None and there:
                    back.append(f"the key {name.id} was destroyed by tombstone {grave.number} and is there again")
            elif not there:
                whose = f"tenant {name.tenant}" if name.tenant else "the mesh"
                lost.append(f"the key {name.id} of {whose} is missing, and no tombstone says why: {records} records")
        for kind in (self._faults, back, lost):
            report.faults += kind[:_TOLD]
            if len(kind) > _TOLD:
                report.faults.append(f"… and {len(kind) - _TOLD} more like this")
        if keys is None and report.sealed:
            report.notes.append("the keys of sealed payloads were not looked for")

    def _learn(self, buried: Iterable[tuple[int, bytes]]) -> Iterable[str]:
        """Tombstones that only the vault has: of a log that was put back from before them."""
        for number, record in buried:
            try:
                if found := read(number, record, self._verifier):
                    self._tombstones.add(found)
            except TombstoneError as error:
                yield f"in the vault: {error}"
