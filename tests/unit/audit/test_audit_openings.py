"""What begins and finds no slot in the journal is counted and said."""

from __future__ import annotations

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
