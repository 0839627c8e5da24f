"""The journal gives back what was written, up to the first damage."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.gcra import ALL_MODELS, BucketState, Changes, LeaseState, Ledger, LimitSpec, ScopeState
from services.ratelimit.journal import Journal
from services.ratelimit.policy.recovery import Frame, fold, restore

SECOND = 1_000_000_000
SCOPE = ScopeState("acme", "*", BucketState(60, 60, 5), None, 2)
LEASE = LeaseState("acme", "r1", "fast", 10, 30 * SECOND)


def frame(number: int, *, full: bool = False) -> Frame:
    return Frame(number, full, Changes((SCOPE,), (LEASE._replace(request_id=f"r{number}"),), ()))


def written(path: Path, count: int) -> Journal:
    journal = Journal(path, rewrite_bytes=10_000)
    for number in range(count):
        journal.write(frame(number, full=journal.wants_snapshot))
    return journal


def test_frames_come_back(tmp_path: Path) -> None:
    written(tmp_path / "state" / "j", 3)
    assert Journal(tmp_path / "state" / "j", rewrite_bytes=1).load() == [frame(0, full=True), frame(1), frame(2)]


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
    journal.write(frame(0, full=True))
    assert not journal.wants_snapshot
    for number in range(4):
        journal.write(frame(number))
    assert journal.wants_snapshot
    journal.write(frame(9, full=True))
    assert journal.load() == [frame(9, full=True)]


def test_a_failed_write_asks_for_a_snapshot(tmp_path: Path) -> None:
    journal = written(tmp_path / "state" / "j", 2)
    (tmp_path / "state" / "j").unlink()
    (tmp_path / "state" / "j").mkdir()
    with pytest.raises(IsADirectoryError):
        journal.write(frame(3))
    assert journal.wants_snapshot


def test_folding_applies_frames_in_order() -> None:
    later = SCOPE._replace(requests=BucketState(60, 60, 9))
    state = fold(
        [
            Frame(1, False, Changes((), (LEASE._replace(request_id="void"),), ())),
            Frame(2, True, Changes((SCOPE,), (LEASE,), ())),
            Frame(3, False, Changes((later,), (LEASE._replace(request_id="r2"),), (("acme", "r1"),))),
        ]
    )
    assert state.scopes == {("acme", "*"): (later, 3)}
    assert list(state.leases) == [("acme", "r2")]
    assert state.settled == {("acme", "r1"): 3}


def test_time_that_passed_refills_and_expires() -> None:
    ledger = Ledger()
    state = fold(
        [
            Frame(
                100 * SECOND,
                True,
                Changes(
                    (ScopeState("acme", ALL_MODELS, None, BucketState(60, 60, 60 * SECOND), 5),),
                    (LEASE, LEASE._replace(request_id="short", expires_in_ns=SECOND)),
                    (("acme", "old"),),
                ),
            )
        ]
    )
    restore(ledger, state, now=5, wall_now=130 * SECOND, settled_retention_ns=10 * SECOND)
    ledger.apply_limits({("acme", ALL_MODELS): LimitSpec(0, 60, 5)}, 5)
    assert ledger.report("acme", "fast", 5).tokens.remaining == 30
    assert ledger.expire(5) == 2
    assert ledger.remembered_settled == 2
