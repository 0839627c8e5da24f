"""Sums of a store of records are saved while it is written, and put back where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libs.auditlog.chain import ZERO, encode_entry
from libs.backup.records import NAME, SUMS, SumsError, move_into, sums_in
from libs.usage import Counts
from services.records.answers import Claim, State
from services.records.queries import Question, Wanted
from services.records.store import Store


def lines(count: int) -> list[bytes]:
    made, prev = [], ZERO
    for number in range(1, count + 1):
        usage = {"outcome": "stop", "completion_tokens": 4}
        record = {"class": "request", "id": f"r{number}", "time": "2026-11-01T10:00:00Z", "usage": usage}
        prev, line = encode_entry(prev, number, json.dumps(record, separators=(",", ":")).encode())
        made.append(line)
    return made


def opened(folder: Path) -> Store:
    return Store(f"sqlite:///{folder / NAME}", statement_seconds=5)


def test_sums_go_on_where_they_were_and_rows_are_left_out(tmp_path: Path) -> None:
    store = opened(tmp_path)
    at = store.project(store.open(), lines(5)[:3], segment=1, base=0)
    saved = sums_in(tmp_path)  # while it is open
    store.project(at, lines(5)[3:], segment=1, base=0)
    store.close()
    (tmp_path / SUMS).write_bytes(saved)
    move_into(tmp_path, tmp_path)
    assert (tmp_path / SUMS).exists(), "a store that is there stays"
    move_into(tmp_path, tmp_path / "new")
    again = opened(tmp_path / "new")
    assert again.open() == at
    assert again.sums(Question()).rows == [((), Counts(requests=3, completion=12))]
    assert again.page(Wanted(size=9)).rows == []
    assert again.project(at, lines(5)[3:], segment=1, base=0).sequence == 5
    again.close()


def test_answers_to_idempotency_keys_are_in_no_backup(tmp_path: Path) -> None:
    """They are words, sealed, and gone after a day, which a backup is not; after a restore a key stands for nothing."""
    store = opened(tmp_path)
    store.project(store.open(), lines(1), segment=1, base=0)
    claim = Claim("acme", b"k" * 32, b"b" * 32, "gateway/a", lease=6_000, life=86_400_000)
    answers = store.answers()
    assert answers.begin(claim, now=0) == (State.BEGUN, b"")
    assert answers.keep("acme", claim.key, claim.holder, b"sealed words of somebody")
    assert answers.begin(claim, now=1) == (State.ENDED, b"sealed words of somebody")
    saved = sums_in(tmp_path)
    store.close()
    assert b"sealed words" not in saved
    assert claim.key not in saved
    (tmp_path / SUMS).write_bytes(saved)
    move_into(tmp_path, tmp_path / "new")
    again = opened(tmp_path / "new")
    assert again.open().sequence == 1
    assert again.answers().begin(claim, now=2) == (State.BEGUN, b"")
    again.close()


def test_where_there_is_no_store_there_are_no_sums(tmp_path: Path) -> None:
    assert sums_in(tmp_path) == b""
    (tmp_path / NAME).write_bytes(b"no database, but longer than a header of one would be" * 20)
    with pytest.raises(SumsError, match="not a database"):
        sums_in(tmp_path)
