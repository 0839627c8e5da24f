"""The journal gives back what was written, up to the first damage."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.quota import (
    ALL_MODELS,
    MINUTE_NS,
    Ask,
    Batch,
    Cursor,
    Ledger,
    LedgerState,
    LimitSpec,
    Logged,
    Opened,
    PartState,
    Piece,
    Replica,
    ScopeState,
    Seen,
    Use,
)
from services.ratelimit.journal import Journal
from services.ratelimit.policy.recovery import Frame, restore
from tests.support.quota import pieces

SECOND = 1_000_000_000
PART = ("ratelimit-0", "1")
SCOPE = ScopeState("acme", "*", (PartState(PART, (Use(5, 1),), (Use(6, 2),), ()),))
LEASE = Opened("acme", "fast", "r1", "fast@1", 10, 3, 1, False, "gateway-0", 0, 30 * SECOND, PART)
PIECE = Piece(Cursor(), None, LedgerState((SCOPE,), (LEASE,), ()), (Seen(PART, 7),))


def frame(number: int, *, full: bool = False) -> Frame:
    if full:
        return Frame(number, PIECE)
    return Frame(number, None, (Logged(PART, number, Batch((LEASE._replace(request_id=f"r{number}"),))),))


def rewrite(journal: Journal, *frames: Frame) -> None:
    journal.begin()
    for each in frames:
        journal.add(each)
    journal.commit()


def written(path: Path, count: int) -> Journal:
    journal = Journal(path, rewrite_bytes=10_000)
    assert journal.wants_snapshot
    rewrite(journal, frame(0, full=True))
    journal.write([frame(number) for number in range(1, count)])
    return journal


def test_frames_come_back(tmp_path: Path) -> None:
    written(tmp_path / "state" / "j", 3)
    assert Journal(tmp_path / "state" / "j", rewrite_bytes=1).load() == [frame(0, full=True), frame(1), frame(2)]


def test_what_is_decided_while_a_snapshot_is_written_is_in_the_old_file_and_in_the_new_one(tmp_path: Path) -> None:
    journal = written(tmp_path / "j", 2)
    journal.begin()
    journal.add(frame(7, full=True))
    journal.write([frame(8)])
    assert journal.load() == [frame(0, full=True), frame(1), frame(8)]
    journal = written(tmp_path / "j", 2)
    journal.begin()
    journal.add(frame(7, full=True))
    journal.write([frame(8)])
    journal.add(frame(9, full=True))
    journal.commit()
    assert journal.load() == [frame(7, full=True), frame(8), frame(9, full=True)]


def test_no_file_is_no_state(tmp_path: Path) -> None:
    assert Journal(tmp_path / "j", rewrite_bytes=1).load() == []


@settings(deadline=None)
@given(cut=st.integers(0, 400), flip=st.integers(0, 399))
def test_damage_ends_the_reading_and_never_raises(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int
) -> None:
    path = tmp_path_factory.mktemp("j") / "j"
    written(path, 3)
    content = bytearray(path.read_bytes())
    content[flip % len(content)] ^= 0x40
    path.write_bytes(bytes(content[:cut]))
    frames = Journal(path, rewrite_bytes=1).load()
    assert frames == [frame(0, full=True), frame(1), frame(2)][: len(frames)]
    assert len(frames) < 3


def test_a_long_journal_is_rewritten(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", rewrite_bytes=200)
    rewrite(journal, frame(0, full=True))
    assert not journal.wants_snapshot
    for number in range(4):
        journal.write([frame(number)])
    assert journal.wants_snapshot
    rewrite(journal, frame(9, full=True))
    assert journal.load() == [frame(9, full=True)]


def test_a_failed_write_asks_for_a_snapshot(tmp_path: Path) -> None:
    journal = written(tmp_path / "state" / "j", 2)
    (tmp_path / "state" / "j").unlink()
    (tmp_path / "state" / "j").mkdir()
    with pytest.raises(IsADirectoryError):
        journal.write([frame(3)])
    assert journal.wants_snapshot


def replica(life: str, *, keep_log: bool = False) -> Replica:
    ledger = Ledger(part=("ratelimit-0", life), track_changes=True)
    ledger.apply_limits({("acme", ALL_MODELS): LimitSpec(60, 100, 5)}, 0)
    return Replica(ledger, keep_log=keep_log)


def test_a_replica_goes_on_where_its_journal_ends(tmp_path: Path) -> None:
    before, journal = replica("1", keep_log=True), Journal(tmp_path / "j", rewrite_bytes=10_000)
    now = 0

    def reserve(name: str, tokens: int, lease_ns: int) -> None:
        before.ledger.reserve(Ask("acme", "fast", name, tokens), lease_ns=lease_ns, now=now)

    reserve("done", 20, 300 * SECOND)
    before.ledger.settle("acme", "fast", "done", 15, now)
    before.flush(now)
    before.take_log()
    snapshot = [Frame(1000 * SECOND, piece) for piece in pieces(before, now)]
    rewrite(journal, *snapshot)
    now = 10 * SECOND
    reserve("live", 30, 300 * SECOND)
    reserve("short", 5, 20 * SECOND)
    before.flush(now)
    journal.write([Frame(1010 * SECOND, None, before.take_log())])

    after = replica("2", keep_log=True)
    now = 7
    assert restore(after, journal.load(), now=now, wall_now=1040 * SECOND) == len(snapshot) + 1
    assert after.take_log() == ()
    ledger = after.ledger
    assert ledger.expire(now) == 1
    state = ledger.report("acme", "fast", now)
    assert (state.tokens.remaining, state.requests.remaining, state.concurrency.remaining) == (50, 57, 4)
    assert not ledger.settle("acme", "fast", "done", 99, now)
    assert ledger.settle("acme", "fast", "live", 30, now)
    # What was settled 40 seconds before the start leaves 20 seconds after it.
    later = 22 * SECOND
    assert ledger.report("acme", "fast", later).tokens.remaining == 65
    assert ledger.report("acme", "fast", MINUTE_NS + later).tokens.remaining == 100


def test_a_clock_that_stepped_back_lets_no_time_pass(tmp_path: Path) -> None:
    before = replica("1")
    before.ledger.settle("acme", "fast", "r1", 40, 0)
    before.flush(0)
    after = replica("2")
    restore(after, [Frame(1000 * SECOND, piece) for piece in pieces(before, 0)], now=0, wall_now=10 * SECOND)
    assert after.ledger.report("acme", "fast", 59 * SECOND).tokens.remaining == 60


@pytest.mark.parametrize("told", [True, False])
def test_c8_what_was_decided_between_two_pieces_of_a_snapshot_counts_once(told: bool) -> None:
    """Of a tenant that was written already, and of one that was not yet."""
    before = replica("1", keep_log=True)
    names = [f"t{number}" for number in range(200)]
    for name in names:
        before.ledger.settle(name, "fast", "first", 10, 0)
    before.flush(0)
    before.take_log()
    frames, cursor, turn = [], Cursor(), 0
    while cursor is not None:
        for name in names[turn : turn + 20]:
            before.ledger.settle(name, "fast", "second", 1, 0)
            before.ledger.admit_edge(name, requests=1, tokens=0, now=0)
        before.flush(0)
        if told:
            frames.append(Frame(0, None, before.take_log()))
        piece = before.piece(cursor, 0)
        frames.append(Frame(0, piece))
        cursor, turn = piece.next, turn + 20
    frames.append(Frame(0, None, before.take_log()))
    after = replica("2")
    restore(after, frames, now=0, wall_now=0)
    assert turn >= 200
    used = {name: after.ledger.books.scopes.wide(name, 0).tokens.used(0) for name in names}
    assert used == dict.fromkeys(names, 11)
    taken = {name: after.ledger.books.scopes.wide(name, 0).requests.used(0) for name in names}
    assert taken == dict.fromkeys(names, 1)
