"""The store of records, in SQLite and in PostgreSQL: one contract. Its sums are the pure fold's."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from libs.auditlog import LineError
from libs.auditlog.chain import ZERO, encode_entry
from libs.usage import Counts, Fold, Key, read
from services.records import queries
from services.records import store as store_module
from services.records.queries import Question, Wanted
from services.records.store import ForkError, Position, Store, StoreAwayError, TakenError
from tests.support.mesh import ROOT
from tests.support.postgres import Server, server

HOUR = 1_793_527_200 // 3600
DIMENSIONS = tuple(queries.DIMENSIONS)
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without shrinking: a database takes too long for that."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a new database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'records.sqlite'}"
    made: Server = request.getfixturevalue("postgres")
    return made.database()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = Store(url, statement_seconds=20)
    made.open()
    yield made
    made.close()


def event(number: int, **more: Any) -> dict[str, Any]:
    """A record."""
    minute = more.pop("minute", 0)
    used = {"outcome": "stop", "prompt_tokens": 3, "completion_tokens": 4, "spend_microusd": 5, "operation": "chat"}
    return {
        "class": "request",
        "id": more.pop("id", f"r{number}"),
        "tenant": more.pop("tenant", "acme"),
        "time": f"2026-11-01T{10 + minute // 60:02d}:{minute % 60:02d}:00.000Z",
        "usage": used | more,
        "key": f"2026-11/{number % 3:016x}",
        "sealed": "x",
    }


def chained(records: Sequence[dict[str, Any]], *, after: Position = Position()) -> list[bytes]:  # noqa: B008 - a value
    """The log's lines of them, behind a position."""
    prev, lines = bytes.fromhex(after.hash), []
    for sequence, record in enumerate(records, after.sequence + 1):
        prev, line = encode_entry(prev, sequence, json.dumps(record, separators=(",", ":")).encode())
        lines.append(line)
    return lines


def folded(records: Sequence[dict[str, Any]]) -> dict[Key, Counts]:
    """What the pure fold makes of all of them at once."""
    fold = Fold()
    for record in records:
        if (used := read(json.dumps(record, separators=(",", ":")).encode())) is not None:
            fold.add(used)
    return {key: counts for key, counts in fold.sums.items() if counts != Counts()}


def stored(store: Store) -> dict[Key, Counts]:
    """What the store has, over all segments."""
    found: dict[Key, Counts] = {}
    for (key, _), counts in store.everything()[1].items():
        found.setdefault(key, Counts()).add(counts)
    return {key: counts for key, counts in found.items() if counts != Counts()}


def total(store: Store, **asked: Any) -> Counts:
    [(_, counts)] = store.sums(Question(**asked)).rows or [((), Counts())]
    return counts


def outcomes() -> st.SearchStrategy[dict[str, Any]]:
    """What may be told of a few requests and leases, in any order and more than once."""
    plain = st.fixed_dictionaries(
        {
            "id": st.sampled_from(["a", "b", "c", "lease-1"]),
            "tenant": st.sampled_from(["acme", "tiny"]),
            "minute": st.integers(0, 150),
            "model": st.sampled_from(["m", "n"]),
            "outcome": st.sampled_from(["stop", "rejected", "evicted", "gateway_lost", "error"]),
            "completion_tokens": st.integers(0, 9),
        }
    )
    unknown = st.fixed_dictionaries(
        {
            "id": st.sampled_from(["unknown-a", "unknown-b/x", "unknown-lease-1", "unknown-lease-2"]),
            "minute": st.integers(0, 150),
            "outcome": st.just("usage_unknown"),
            "prompt_tokens": st.just(0),
            "completion_tokens": st.just(0),
            "spend_microusd": st.just(0),
            "at_most_tokens": st.integers(0, 50),
            "at_most_rows": st.integers(0, 50),
        }
    )
    drawn = st.fixed_dictionaries(
        {
            "id": st.sampled_from(["p1", "p2", "p3"]),
            "operation": st.just("predict"),
            "outcome": st.sampled_from(["ok", "predictor_lost"]),
            "completion_tokens": st.just(0),
            "rows": st.integers(0, 20),
            "lease": st.sampled_from(["lease-1", "lease-2"]),
        }
    )
    return plain | unknown | drawn


@given(st.lists(outcomes(), max_size=14), st.lists(st.integers(1, 5), min_size=14, max_size=14))
@settings(max_examples=40, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_however_it_comes_the_sums_are_the_pure_folds(
    store: Store, told: list[dict[str, Any]], sizes: list[int]
) -> None:
    records = [event(number, **each) for number, each in enumerate(told, 1)]
    at, lines = store.reset(0, ZERO.hex()), chained(records)
    assert at == Position()
    while lines:
        size, segment = sizes[at.sequence % len(sizes)], at.sequence // 4 * 4 + 1
        at = store.project(at, lines[:size], segment=segment, base=0)
        lines = lines[size:]
        assert store.position() == at
    assert stored(store) == folded(records)
    for by in DIMENSIONS:
        rows = store.sums(Question(by=(by,))).rows
        assert sum(counts.completion for _, counts in rows) == sum(
            each["usage"]["completion_tokens"] for each in records
        )
    assert len(store.page(Wanted(size=100)).rows) == len(records)


@given(
    st.lists(st.tuples(st.sampled_from(["acme", "tiny"]), st.integers(0, 5), st.sampled_from("ab")), max_size=25),
    st.dictionaries(st.sampled_from(["tenant", "outcome"]), st.sampled_from(["acme", "a"]), max_size=2),
    st.integers(1, 4),
    st.booleans(),
)
@settings(max_examples=40, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pages_have_every_request_once_in_order_however_little_one_looks_at(
    store: Store, told: list[tuple[str, int, str]], equal: dict[str, str], size: int, follow: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "LOOK", 3)
        store.reset(0, ZERO.hex())
        records = [event(n, tenant=tenant, minute=m, outcome=o) for n, (tenant, m, o) in enumerate(told, 1)]
        if records:
            store.project(Position(), chained(records), segment=1, base=0)
        rows = list(enumerate(told, 1))
        wanted = [
            sequence
            for sequence, (tenant, _, outcome) in sorted(
                rows, key=lambda row: row[0] if follow else (-row[1][1], -row[0])
            )
            if equal.get("tenant", tenant) == tenant and equal.get("outcome", outcome) == outcome
        ]
        found: list[int] = []
        token, after = "", 0
        for _ in range(len(told) + 2):
            page = store.page(
                Wanted(equal=equal, size=size, behind=queries.behind(token), after=after if follow else None)
            )
            assert len(page.rows) <= size
            found += [row["sequence"] for row in page.rows]
            token, after = page.token, page.sequence
            if (after if follow else not token) == (len(told) if follow else True):
                break
        assert found == wanted


def test_what_is_projected_while_a_page_is_read_is_on_the_next(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, other = chained([event(n) for n in range(1, 6)]), Store(url, statement_seconds=20)
    at = store.project(Position(), lines[:2], segment=1, base=0)
    read = store_module._position

    def meanwhile(connection: sa.Connection) -> Position:
        found = read(connection)
        monkeypatch.undo()
        other.project(at, lines[2:], segment=1, base=0)
        return found

    monkeypatch.setattr(store_module, "_position", meanwhile)
    first = store.page(Wanted(size=9, after=0))
    second = store.page(Wanted(size=9, after=first.sequence))
    assert [[row["sequence"] for row in page.rows] for page in (first, second)] == [[1, 2], [3, 4, 5]]
    other.close()


def test_times_bound_pages_and_hours_bound_sums(store: Store) -> None:
    records = [event(n, minute=n) for n in range(1, 121)]
    store.project(Position(), chained(records), segment=1, base=0)
    begin = HOUR * 3_600_000
    page = store.page(Wanted(size=100, since=begin + 60_000 * 5, until=begin + 60_000 * 8))
    assert [row["id"] for row in page.rows] == ["r7", "r6", "r5"]
    assert total(store, since=HOUR, until=HOUR + 1).requests == 59
    assert total(store, since=HOUR + 1, until=HOUR + 2).requests == 60
    assert total(store, models=("m",)) == Counts()


def test_what_does_not_follow_is_refused_and_changes_nothing(store: Store) -> None:
    lines = chained([event(n) for n in range(1, 7)])
    at = store.project(Position(), lines[:3], segment=1, base=0)
    other = chained([event(9)] * 4)
    for wrong in ([lines[4]], [other[3]], [lines[3][:-9] + lines[4][-9:]], [lines[3], other[3]]):
        with pytest.raises(LineError):
            store.project(at, wrong, segment=1, base=0)
    with pytest.raises(ForkError, match="records 4 to 5 are not in the log any more"):
        store.project(at, lines[5:], segment=6, base=5)
    assert (store.position(), total(store).requests) == (at, 3)


def test_a_failure_in_the_middle_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = chained([event(n) for n in range(1, 4)])

    def broken(*_: Any) -> None:
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_add", broken)
        with pytest.raises(RuntimeError):
            store.project(Position(), lines, segment=1, base=0)
    assert (store.position(), store.page(Wanted(size=9)).rows) == (Position(), [])
    store.project(Position(), lines, segment=1, base=0)
    assert total(store).requests == 3


def test_of_two_that_project_one_is_first_each_time(url: str, store: Store) -> None:
    lines = chained([event(n) for n in range(1, 201)])
    taken = []

    def project() -> None:
        own = Store(url, statement_seconds=20)
        try:
            while (at := own.open()).sequence < len(lines):
                try:
                    own.project(at, lines[at.sequence : at.sequence + 7], segment=1, base=0)
                except (TakenError, StoreAwayError) as error:
                    taken.append(error)
        finally:
            own.close()

    threads = [threading.Thread(target=project) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (store.position().sequence, total(store).requests) == (200, 200)
    with pytest.raises(TakenError):
        store.project(Position(), lines[:1], segment=1, base=0)


_CHILD = """
import sys
from services.records.store import Store
store, lines = Store(sys.argv[1], statement_seconds=20), sys.stdin.buffer.read().splitlines(keepends=True)
at = store.open()
while at.sequence < len(lines):
    at = store.project(at, lines[at.sequence : at.sequence + 5], segment=1, base=0)
    print(at.sequence, flush=True)
"""


def test_killed_at_any_moment_each_record_is_in_once(url: str, store: Store, tmp_path: Path) -> None:
    lines = chained([event(n) for n in range(1, 2001)])
    (tmp_path / "lines").write_bytes(b"".join(lines))
    for stop in (1, 40, 90):
        with (tmp_path / "lines").open("rb") as given_:
            child = subprocess.Popen(
                [sys.executable, "-c", _CHILD, url], stdin=given_, stdout=subprocess.PIPE, cwd=ROOT
            )
            assert child.stdout is not None
            for _ in range(stop):
                child.stdout.readline()
            child.send_signal(signal.SIGKILL)
            child.wait(20)
            child.stdout.close()
        at = store.position()
        assert at.sequence == total(store).requests == total(store).completion // 4
    while at.sequence < len(lines):
        at = store.project(at, lines[at.sequence : at.sequence + 500], segment=1, base=0)
    assert stored(store) == folded([event(n) for n in range(1, 2001)])


def test_a_log_whose_beginning_is_gone_is_made_anew_from_where_it_begins(store: Store) -> None:
    records = [event(n, minute=n) for n in range(1, 13)]
    lines = chained(records)
    at = Position()
    for first in (1, 5, 9):
        at = store.project(at, lines[first - 1 : first + 3], segment=first, base=0)
    before = stored(store)
    # Retention has removed records 1 to 4; a row of 6 is damaged.
    with store._engine.begin() as connection:
        connection.execute(sa.text('UPDATE "usage" SET requests = 99 WHERE segment = 5'))
    assert stored(store) != before
    at = store.reset(4, json.loads(lines[4])["prev"])
    assert total(store).requests == 4
    assert store.sums(Question()).since == 0
    for first in (5, 9):
        at = store.project(at, lines[first - 1 : first + 3], segment=first, base=4)
    assert stored(store) == before
    assert len(store.page(Wanted(size=99)).rows) == 12


def test_a_store_that_begins_behind_the_logs_beginning_says_since_when(store: Store) -> None:
    lines = chained([event(n) for n in range(1, 7)])
    at = store.project(Position(), lines[3:], segment=4, base=3)
    assert (at.sequence, at.base, at.since) == (6, 3, HOUR // 24 * 24 + 24)
    assert store.sums(Question()).since == at.since
    # Made anew, it knows no more.
    assert store.reset(3, json.loads(lines[3])["prev"]).since == at.since


def test_what_is_too_old_goes_in_pieces(store: Store) -> None:
    store.project(Position(), chained([event(n, minute=n) for n in range(1, 11)]), segment=1, base=0)
    before = HOUR * 3_600_000 + 60_000 * 6
    assert [store.retain(before=before, hour=0, most=3) for _ in range(3)] == [3, 2, 0]
    assert [row["id"] for row in store.page(Wanted(size=9)).rows] == ["r10", "r9", "r8", "r7", "r6"]
    assert total(store).requests == 10
    store.retain(before=0, hour=HOUR + 1, most=3)
    assert total(store) == Counts()


def test_a_database_that_is_away_is_told_and_comes_back(postgres: Server) -> None:
    store = Store(postgres.database(), statement_seconds=5)
    lines = chained([event(1), event(2)])
    at = store.project(store.open(), lines[:1], segment=1, base=0)
    postgres.stop()
    try:
        for question in (store.position, lambda: store.project(at, lines[1:], segment=1, base=0), store.open):
            with pytest.raises(StoreAwayError):
                question()
    finally:
        postgres.start()
    assert store.project(store.open(), lines[1:], segment=1, base=0).sequence == 2
    store.close()


def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'none' / 'records.sqlite'}", statement_seconds=5)
    with pytest.raises(StoreAwayError):
        store.open()
    store.close()


@pytest.mark.parametrize("url", ["", "mysql://x/y", "postgresql://x/y", "nonsense"])
def test_another_database_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="database"):
        Store(url, statement_seconds=5)
