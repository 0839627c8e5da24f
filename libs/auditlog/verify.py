"""Verification of a log, offline: no service, no lock, read only.

The chain holds without any key. Which payloads are erased, and by what, is told from headers and tombstones; with the
ids of the keys that there are, also whether a payload is lost without a tombstone, or a key is back that one covers.
"""

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from libs.auditlog.base import Base, read_base
from libs.auditlog.chain import Checkpoint, Entry, LineError, decode_checkpoint, follow
from libs.auditlog.graves import Graves
from libs.auditlog.keys import Verifier, load_verifier
from libs.auditlog.layout import CHECKPOINTS_NAME, lines_of, segments


@dataclass(slots=True)
class Report:
    """What verification found. `faults` are in the order of the log; `notes` are no faults."""

    first: int = 1
    """The first record; those before it were truncated."""
    records: int = 0
    """The last record that holds, and all from the first on do."""
    sealed: int = 0
    """Records whose payload is sealed."""
    erased: int = 0
    """Of these, records whose payload is erased by a tombstone."""
    tombstones: int = 0
    """In the log."""
    checkpoints: int = 0
    """Checkpoints that were compared."""
    head: str = ""
    """The last good record's hash, 64 hex digits; empty for an empty log."""
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Everything holds."""
        return not self.faults


def verify_directory(
    path: Path,
    *,
    checkpoints: Path,
    public_key: Path | Verifier,
    anchors: Iterable[bytes] = (),
    upto: int | None = None,
    keys: Collection[str] | None = None,
    buried: Iterable[tuple[int, bytes]] = (),
) -> Report:
    """Verify the log in `path` against the checkpoints in the directory `checkpoints`.

    `anchors` are further checkpoint lines kept elsewhere (etcd). `upto` is the last record that a running writer has
    committed: what follows is still being written and is not looked at. `keys` are the ids of the data keys that there
    are, None where nobody can say; `buried` are tombstones, (number, record), that the vault knows. Damage becomes
    faults, never exceptions.

    Raises:
        OSError: a file cannot be read.
        KeyFileError: the public key cannot be.
    """
    report = Report()
    verifier = load_verifier(public_key) if isinstance(public_key, Path) else public_key
    # Checkpoints before records: a log that grows meanwhile is then ahead of them, never behind.
    wanted = _checkpoints(checkpoints / CHECKPOINTS_NAME, anchors, verifier, report)
    wanted = [checkpoint for checkpoint in wanted if upto is None or checkpoint.count <= upto]
    by_count = {checkpoint.count: checkpoint for checkpoint in wanted}
    conflicting = [c.count for c in wanted if c.hash != by_count[c.count].hash]
    for count in sorted(set(conflicting)):
        report.faults.append(f"checkpoints of record {count} contradict each other")
    graves = Graves(verifier)
    _records(path, report, by_count, upto, _base(checkpoints, verifier, report), graves)
    report.checkpoints = len(wanted)
    _compare(report, wanted)
    graves.judge(report, keys=keys, buried=buried)
    return report


def _checkpoints(file: Path, anchors: Iterable[bytes], verifier: Verifier, report: Report) -> list[Checkpoint]:
    found: list[Checkpoint] = []
    lines, torn = lines_of(file) if file.exists() else ([], b"")
    if torn:
        report.notes.append("the last checkpoint is torn")
    for number, line in enumerate(lines, 1):
        try:
            found.append(decode_checkpoint(line, verifier))
        except LineError as error:
            report.faults.append(f"checkpoint line {number}: {error}")
    if any(later.count < earlier.count for earlier, later in itertools.pairwise(found)):
        report.faults.append("checkpoints are out of order")
    for anchor in anchors:
        try:
            found.append(decode_checkpoint(anchor, verifier))
        except LineError as error:
            report.faults.append(f"anchor: {error}")
    return found


def _base(checkpoints: Path, verifier: Verifier, report: Report) -> Base:
    try:
        base = read_base(checkpoints, verifier)
    except LineError as error:
        report.faults.append(str(error))
        return Base()
    report.first = base.count + 1
    if base.count:
        report.notes.append(f"records 1 to {base.count} are older than their retention; a signed base says so")
    return base


def _records(
    path: Path, report: Report, wanted: dict[int, Checkpoint], upto: int | None, base: Base, graves: Graves
) -> None:
    prev, sequence = base.hash, base.count
    # A crash while the log is truncated leaves segments from before the base.
    found = [each for each in segments(path) if each[0] > base.count] if path.exists() else []
    for position, (first, file) in enumerate(found):
        if upto is not None and sequence >= upto:
            break
        if first != sequence + 1:
            report.faults.append(f"{file.name} begins with record {first} where {sequence + 1} belongs")
            break
        lines, torn = lines_of(file)
        bad = False
        try:
            for entry in follow(lines, prev=prev, sequence=sequence):
                prev, sequence = entry.hash, entry.sequence
                _at_checkpoint(report, wanted, entry)
                graves.look(entry)
                if upto is not None and sequence >= upto:
                    break
        except LineError as error:
            report.faults.append(f"{file.name}, after record {sequence}: {error}")
            bad = True
        if bad:
            break
        if torn and (upto is None or sequence < upto):
            text = f"{file.name}, after record {sequence}: {len(torn)} bytes of a record cut short"
            last = position == len(found) - 1
            (report.notes if last else report.faults).append(text)
            break
    report.records = sequence
    report.head = prev.hex() if sequence else ""


def _at_checkpoint(report: Report, wanted: dict[int, Checkpoint], entry: Entry) -> None:
    checkpoint = wanted.get(entry.sequence)
    if checkpoint is not None and checkpoint.hash != entry.hash:
        report.faults.append(f"record {entry.sequence} is not the one that was checkpointed")


def _compare(report: Report, wanted: list[Checkpoint]) -> None:
    last = max((checkpoint.count for checkpoint in wanted), default=0)
    if last > report.records:
        report.faults.append(f"records {report.records + 1} to {last} are missing or damaged: a checkpoint counts them")
    elif report.records and not wanted:
        report.faults.append("there are records but no checkpoint")
    elif report.records > last:
        report.notes.append(f"records {last + 1} to {report.records} are not checkpointed yet")
