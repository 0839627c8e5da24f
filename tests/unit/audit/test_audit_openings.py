"""What begins stands in the journal, whatever becomes of it and of its process; what finds no slot there is counted and
said."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from weir.audit.v1 import audit_pb2

from libs.auditlog import AuditWriter, client
from libs.clock import ManualClock
from libs.journal import Journal
from tests.support.mesh import ROOT


def unopened() -> float:
    return REGISTRY.get_sample_value("weir_audit_writer_unopened_total") or 0.0


def test_openings_without_a_slot_are_counted_and_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[tuple[str, dict[str, Any]]]()
    monkeypatch.setattr(client, "log", SimpleNamespace(error=lambda event, **told: said.append((event, told))))
    journal = Journal(tmp_path, max_bytes=1 << 20, segment_bytes=1 << 16, slots=2, slot_bytes=128, rng=Random(1))
    writer = AuditWriter(None, journal, source="gateway/g", clock=ManualClock())  # type: ignore[arg-type]
    before, small = unopened(), audit_pb2.Record(id="r")
    assert writer.open(audit_pb2.Record(id="r" * 200)) == journal.none  # longer than a slot
    first = writer.open(small)
    writer.keep(b"a settlement")
    assert unopened() == before + 1
    assert writer.open(small) == writer.keep(b"another") == journal.none
    assert unopened() == before + 3
    writer.release(first)
    assert writer.open(small) == first
    assert [event for event, _ in said] == ["audit_opening_without_slot"] * 2
    journal.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from random import SystemRandom
from weir.audit.v1 import audit_pb2
from libs.auditlog import AuditWriter
from libs.clock import SystemClock
from libs.journal import Journal
journal = Journal(Path(sys.argv[1]), rng=SystemRandom(), max_bytes=1 << 20, segment_bytes=1 << 16, slots=7)
writer = AuditWriter(None, journal, source="gateway/g", clock=SystemClock())
def record(number, version):
    event = audit_pb2.RequestEvent(request_id=f"r{number}", model_version=version)
    event.safety_policies.extend(f"{'a-long-name-of-a-policy' * 2}-{each}@1" for each in range(24))
    return audit_pb2.Record(id=f"r{number}", request=event)
places = [writer.open(record(number, "large@1")) for number in range(3)]
for number in range(3):
    writer.keep(b"%d" % number)
for number, place in enumerate(places):
    writer.mark(place, 10 + number)
    places[number] = writer.open(record(number, "small@1"), place)
writer.mark(places[2], 20)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_with_every_slot_taken_nothing_that_ran_is_without_a_record_after_a_kill(tmp_path: Path) -> None:
    """Three requests that may run, three settlements, and the slot that lets each of them move."""
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    journal = Journal(tmp_path, max_bytes=1 << 20, segment_bytes=1 << 16, slots=7, rng=Random(1))
    writer = AuditWriter(None, journal, source="gateway/g", clock=ManualClock())  # type: ignore[arg-type]
    kept, marks = list[bytes](), dict[str, int]()

    def lost(record: audit_pb2.Record, mark: int) -> audit_pb2.Record:
        marks[record.id] = mark
        return record

    records = writer.recover(lost, kept.append)
    assert sorted(each.request.model_version for each in records) == ["small@1"] * 3
    assert marks == {"r0": 10, "r1": 11, "r2": 20}
    assert sorted(kept) == [b"0", b"1", b"2"]
    journal.close()


def test_what_is_killed_while_it_moves_leaves_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Journal(tmp_path, max_bytes=1 << 20, segment_bytes=1 << 16, slots=3, slot_bytes=128, rng=Random(1))
    writer = AuditWriter(None, first, source="gateway/g", clock=ManualClock())  # type: ignore[arg-type]
    before = writer.open(audit_pb2.Record(id="r", source="large"))
    writer.mark(before, 5)
    monkeypatch.setattr(first, "release", lambda slot: None)  # it is killed here
    writer.open(audit_pb2.Record(id="r", source="small"), before)
    first.close()
    again = Journal(tmp_path, max_bytes=1 << 20, segment_bytes=1 << 16, slots=3, slot_bytes=128, rng=Random(2))
    next_life = AuditWriter(None, again, source="gateway/g", clock=ManualClock())  # type: ignore[arg-type]
    seen = list[tuple[str, int]]()
    next_life.recover(lambda record, mark: seen.append((record.source, mark)), lambda note: None)
    assert seen == [("small", 5)]
    again.close()


def test_what_moves_and_finds_no_other_slot_stays_as_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path, max_bytes=1 << 20, segment_bytes=1 << 16, slots=1, slot_bytes=128, rng=Random(1))
    writer = AuditWriter(None, journal, source="gateway/g", clock=ManualClock())  # type: ignore[arg-type]
    place = writer.open(audit_pb2.Record(id="r", source="large"))
    assert writer.open(audit_pb2.Record(id="r", source="small"), place) == place
    journal.close()
