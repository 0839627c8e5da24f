"""Marks: a journal's record is stored once, however late, in whatever pieces it comes; what is missing is told."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.auditlog import AuditFiles, Incoming, Origin, Stored
from libs.auditlog.chain import decode_entry
from libs.auditlog.layout import segments
from libs.auditlog.marks import MAX_SOURCES, Mark, Marks, Superseded
from tests.unit.audit.test_auditlog_files import FailingDisk, assert_good, opened

A, B = ("gateway/a", "a" * 16), ("gateway/b", "b" * 16)


def epoch(number: int) -> str:
    return f"{number << 32:016x}"


def incoming(source: tuple[str, str], sequence: int, *, at: int = 1, start: int = 1, refused: str = "") -> Incoming:
    origin = Origin(*source, epoch(at), sequence, start)
    record_id = f"{source[0]}-{at}-{sequence}"
    body = {"id": record_id, "origin": {"epoch": epoch(at), "journal": source[1], "sequence": sequence}}
    record = json.dumps(body | {"source": source[0]}, separators=(",", ":")).encode()
    return Incoming(record_id, b"" if refused else record, origin, refused)


def bodies(root: Path) -> list[dict[str, object]]:
    lines = (line + b"\n" for _, path in segments(root / "log") for line in path.read_bytes().splitlines())
    return [json.loads(decode_entry(line).record) for line in lines]


def names(root: Path) -> list[object]:
    return [each["id"] for each in bodies(root) if "origin" in each]


def gaps(root: Path) -> list[tuple[int, int]]:
    return [(each["gap"]["first"], each["gap"]["last"]) for each in bodies(root) if "gap" in each]  # type: ignore[index]


STEPS = st.lists(
    st.tuples(st.sampled_from([A, B]), st.integers(1, 30), st.integers(1, 6), st.booleans(), st.booleans()),
    max_size=12,
)


@settings(max_examples=60)
@given(STEPS, st.integers(0, 2**32))
def test_each_is_stored_once_and_what_is_missing_is_told(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[tuple[str, str], int, int, bool, bool]], seed: int
) -> None:
    """Batches come again, too late and with holes before them; the service starts anew, its disk fails."""
    root, rng, disk = tmp_path_factory.mktemp("log"), Random(seed), FailingDisk()
    log, mark = opened(root, segment_bytes=600, disk=disk), {A: 0, B: 0}
    wanted, holes = [], []
    for source, first, count, anew, fails in steps:
        batch = [incoming(source, sequence) for sequence in range(first, first + count)]
        if fails:
            disk.set(broken=True, room=rng.randrange(300))
            before = log.count
            with pytest.raises(Exception, match="space") if first + count - 1 > mark[source] else _nothing():
                log.commit(batch)
            disk.set()
            assert log.count == before
        found = log.commit(batch)
        assert [each.duplicate for each in found if each] == [each.origin.sequence <= mark[source] for each in batch]  # type: ignore[union-attr]
        if first > mark[source] + 1:
            holes.append((mark[source] + 1, first - 1))
        wanted += [each.id for each in batch if each.origin and each.origin.sequence > mark[source]]
        mark[source] = max(mark[source], first + count - 1)
        if anew:
            log.close()
            log = opened(root, segment_bytes=600, disk=disk)
        for each, known in mark.items():
            assert (log.marks.of(*each) or Mark(epoch(1), 0)).sequence == known
    assert names(root) == wanted
    assert gaps(root) == holes
    assert_good(root, log.count)
    log.close()


class _nothing:  # noqa: N801 - reads as the other branch does
    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


def test_a_later_epoch_may_use_sequences_again_and_an_earlier_one_is_over(tmp_path: Path) -> None:
    """The machine lost its power: the journal's last page did not reach its disk, though its records had been sent."""
    log = opened(tmp_path)
    log.commit([incoming(A, sequence) for sequence in (1, 2, 3)])
    assert log.commit([incoming(A, 3, at=2), incoming(A, 4, at=2)]) == [Stored(4), Stored(5)]
    assert log.commit([incoming(A, 4, at=1), incoming(A, 5, at=1)]) == [None, None]
    assert names(tmp_path) == [f"gateway/a-1-{n}" for n in (1, 2, 3)] + [f"gateway/a-2-{n}" for n in (3, 4)]
    assert gaps(tmp_path) == []
    log.close()


def test_a_journal_that_changed_its_name_begins_where_it_says(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.commit([incoming(A, 7, start=7)])
    log.commit([incoming(B, 7, start=5)])
    assert gaps(tmp_path) == [(5, 6)]
    log.close()


def test_a_refused_record_takes_its_place(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.commit([incoming(A, 1), incoming(A, 2, refused="refused: PAYLOAD_TOO_LARGE"), incoming(A, 3)])
    assert log.commit([incoming(A, 2, refused="again")]) == [Stored(0, duplicate=True)]
    assert gaps(tmp_path) == [(2, 2)]
    log.close()
    assert opened(tmp_path).marks.of(*A) == Mark(epoch(1), 3)


def test_segments_begin_with_the_marks_so_that_each_can_be_read_by_itself(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=500)
    log.commit([incoming(B, 1)])
    for sequence in range(1, 30):
        log.commit([incoming(A, sequence)])
    log.close()
    found = segments(tmp_path / "log")
    assert len(found) > 5
    for first, path in found[1:]:
        body = json.loads(decode_entry(path.read_bytes().splitlines(keepends=True)[0]).record)
        assert {(each["source"], each["sequence"]) for each in body["marks"]["marks"]} >= {("gateway/b", 1)}
        assert body["id"] == f"marks-{first}"
    again = opened(tmp_path, segment_bytes=500)
    assert again.marks.of(*B) == Mark(epoch(1), 1)  # only the last segment was read
    assert_good(tmp_path, again.count)
    again.close()


def test_sources_are_bounded_and_the_last_heard_of_stay() -> None:
    marks = Marks()
    for number in range(MAX_SOURCES + 10):
        marks.take(Origin("gateway/g", f"{number:016x}", epoch(1), 5))
    marks.take(Origin("gateway/g", f"{0:016x}", epoch(1), 6))
    kept = {each["journal"] for each in marks.event()["marks"]}
    assert len(kept) == MAX_SOURCES
    assert f"{0:016x}" in kept
    assert f"{1:016x}" not in kept


def test_of_an_earlier_epoch_nothing_is_said() -> None:
    marks = Marks({A: Mark(epoch(2), 9)})
    with pytest.raises(Superseded):
        marks.missing(Origin(*A, epoch(1), 10))
    assert marks.missing(Origin(*A, epoch(2), 9)) is None
    assert marks.missing(Origin(*A, epoch(2), 12)) == range(10, 12)


def test_ids_tell_only_of_records_without_a_journal(tmp_path: Path) -> None:
    log: AuditFiles = opened(tmp_path)
    plain = Incoming("gateway/a-1-1", b'{"id":"gateway/a-1-1"}')
    assert log.commit([incoming(A, 1), plain]) == [Stored(1), Stored(2)]
    assert log.sequence_of("gateway/a-1-1") == 2
    log.close()
    assert opened(tmp_path).sequence_of("gateway/a-1-1") == 2
