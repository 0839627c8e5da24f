"""A journal's folder: kills, full disks, second owners, bounds."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.journal import MAX_PAYLOAD, Journal, JournalLockedError
from tests.support.mesh import ROOT


def opened(path: Path, *, seed: int = 1, **more: Any) -> Journal:
    given = {"max_bytes": 1 << 20, "segment_bytes": 4096, "slots": 8, "slot_bytes": 128} | more
    return Journal(path, rng=Random(seed), **given)


def taken(journal: Journal, limit: int = 1000) -> Iterator[bytes]:
    """Everything that waits, acknowledged batch by batch."""
    while (batch := journal.peek(limit, 1 << 20)) is not None:
        assert len(batch.payloads) == batch.last - batch.first + 1
        yield from batch.payloads
        journal.acknowledge(batch)


def test_what_is_appended_comes_in_order_once(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    wanted = [b"record %d" % number for number in range(300)]
    assert all(journal.append(each) for each in wanted)
    assert journal.pending
    assert list(taken(journal, 7)) == wanted
    assert not journal.pending
    journal.tend()
    assert len(list(tmp_path.glob("*.seg"))) == 1  # what is acknowledged goes
    journal.close()
    assert list(taken(opened(tmp_path, seed=2))) == []


def test_what_is_released_is_over_and_leaves_nothing(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    gone, stays = journal.begin(b"gone"), journal.begin(b"stays")
    journal.marks[stays] = 7
    journal.release(gone)
    journal.release(gone)
    journal.release(journal.none)
    assert not journal.pending
    assert [journal.begin(b"%d" % number) for number in range(7)].count(journal.none) == 0  # its slot is free again
    journal.close()
    again = opened(tmp_path, seed=2)
    assert {(each.payload, each.mark) for each in again.lost if each.payload == b"stays"} == {(b"stays", 7)}
    assert b"gone" not in {each.payload for each in again.lost}
    for each in again.lost:
        again.release(each.slot)
    assert not again.pending
    again.close()
    assert not opened(tmp_path, seed=3).lost


class Kept:
    """What a journal must hold, by its own books."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.running: dict[int, tuple[bytes, int]] = {}


STEPS = st.sampled_from(["begin", "append", "end", "mark", "ack", "kill", "tend"])


@settings(max_examples=60)
@given(st.lists(st.tuples(STEPS, st.integers(0, 400))))
def test_nothing_is_lost_and_nothing_doubled_wherever_it_is_killed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """A kill is a copy of the folder as it is in the page cache."""
    root = tmp_path_factory.mktemp("journal")
    journal, kept, seen, number = opened(root / "0"), Kept(), set(), 0
    for at, (what, size) in enumerate([*steps, ("kill", 0)]):
        slots = sorted(kept.running)
        slot = slots[size % len(slots)] if slots else -1
        if what == "begin":
            payload = b"%d" % at
            if (slot := journal.begin(payload)) != journal.none:
                kept.running[slot] = payload, 0
        elif what == "mark" and slots:
            journal.marks[slot] = size
            kept.running[slot] = kept.running[slot][0], size
        elif what in ("append", "end"):
            payload = b"%d:" % at + bytes(size)
            ends = what == "end" and bool(slots)
            assert journal.append(payload, slot) if ends else journal.append(payload)
            if ends:
                del kept.running[slot]
            kept.waiting.append(payload)
        elif what == "ack" and (batch := journal.peek(1 + size % 5, 1000)) is not None:
            assert batch.payloads == kept.waiting[: len(batch.payloads)]
            assert (batch.epoch, batch.first) not in seen
            seen.add((batch.epoch, batch.first))
            del kept.waiting[: len(batch.payloads)]
            journal.acknowledge(batch)
        elif what == "tend":
            journal.tend()
        elif what == "kill":
            number += 1
            shutil.copytree(root / str(number - 1), root / str(number))
            journal.close()
            journal = opened(root / str(number), seed=number)
            assert {each.slot: (each.payload, each.mark) for each in journal.lost} == kept.running
    assert list(taken(journal, 3)) == kept.waiting
    journal.close()
    shutil.rmtree(root)


WRITER = """
import sys
from pathlib import Path
from random import SystemRandom
from libs.journal import Journal
more = {"max_bytes": 1 << 24, "segment_bytes": 65536, "slots": 4, "slot_bytes": 128}
journal = Journal(Path(sys.argv[1]), rng=SystemRandom(), **more)
slot = journal.begin(b"endless")
number = 0
while True:
    number += 1
    journal.append(b"%d" % number + bytes(100))
    journal.marks[slot] = number
    if number % 100 == 0:
        print(number, flush=True)
"""


def test_a_killed_process_leaves_all_that_it_has_said(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], cwd=ROOT, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        said = 0
        while said < 3000:
            said = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        said = int((writer.stdout.read().split() or [said])[-1])
    journal = opened(tmp_path, max_bytes=1 << 24, segment_bytes=65536)
    numbers = [int(each.rstrip(b"\0")) for each in taken(journal)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= said
    [endless] = journal.lost
    assert endless.payload == b"endless"
    assert 0 <= len(numbers) - endless.mark <= 1
    journal.close()


def test_a_second_owner_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(b"mine")
    with pytest.raises(JournalLockedError):
        opened(tmp_path)
    second = f"from tests.unit.journal.test_journal_files import *; opened(Path({str(tmp_path)!r}))"
    ended = subprocess.run([sys.executable, "-c", second], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "JournalLockedError" in ended.stderr
    journal.close()
    assert list(taken(opened(tmp_path))) == [b"mine"]


def test_its_size_is_bounded_and_what_has_no_room_is_counted_and_leaves_a_gap(tmp_path: Path) -> None:
    journal = opened(tmp_path, max_bytes=3 * 4096)
    stored = [number for number in range(1, 300) if journal.append(b"%d" % number + bytes(90))]
    assert 80 < len(stored) < 120
    assert stored == list(range(1, len(stored) + 1))
    assert journal.full
    assert journal.dropped == 299 - len(stored)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.seg")) <= 3 * 4096
    assert len(list(taken(journal))) == len(stored)
    journal.tend()
    assert not journal.full
    assert journal.append(b"late")
    batch = journal.peek(10, 1000)
    assert batch is not None
    assert (batch.first, batch.payloads) == (300, [b"late"])  # whoever counts sees what is missing
    journal.acknowledge(batch)
    journal.close()
    again = opened(tmp_path)
    again.append(b"next")
    batch = again.peek(10, 1000)
    assert batch is not None
    assert batch.first == 301


def test_what_ended_an_opening_goes_after_the_slots_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power loss in between leaves the opening without its end: it is accounted for twice."""
    journal = opened(tmp_path)
    slot = journal.begin(b"begun")
    journal.tend()
    journal.append(b"ended", slot)
    [holds_end] = tmp_path.glob("*.seg")
    assert all(journal.append(bytes(900)) for _ in range(5))
    assert len(list(taken(journal))) == 6
    synced, fdatasync = [], os.fdatasync

    def sync(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, holds_end.exists()))
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    journal.tend()
    assert ("slots", True) in synced
    assert not holds_end.exists()
    journal.close()


def test_a_full_disk_is_said_and_got_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        journal = opened(tmp_path)
        assert journal.full
        assert journal.begin(b"nothing to stand in") == journal.none
        journal.marks[journal.none] = 7
        assert not journal.append(b"lost")
        with pytest.raises(OSError, match="no space"):
            journal.tend()
    journal.tend()
    assert not journal.full
    assert (slot := journal.begin(b"something")) != journal.none
    assert journal.append(b"kept", slot)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        while journal.append(bytes(500)):
            pass
        assert journal.full
    assert next(taken(journal)) == b"kept"
    journal.close()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no tmpfs")
def test_pages_of_a_tmpfs_outlive_the_process_as_well() -> None:
    path = Path("/dev/shm") / f"weir-journal-{os.getpid()}"
    try:
        journal = opened(path)
        journal.append(b"there")
        shutil.copytree(path, path / "copy")
        assert list(taken(opened(path / "copy"))) == [b"there"]
        journal.close()
    finally:
        shutil.rmtree(path)


def test_slots_are_as_many_as_there_are_and_openings_of_a_former_life_move_to_new_ones(tmp_path: Path) -> None:
    journal = opened(tmp_path, slots=2)
    first, second = journal.begin(b"one"), journal.begin(b"two")
    assert {first, second} == {0, 1}
    assert journal.begin(b"three") == journal.none
    assert journal.append(b"end of one", first)
    assert journal.begin(b"x" * 200) == journal.none  # longer than a slot
    journal.marks[second] = 2**64 - 1
    journal.close()
    again = opened(tmp_path, slots=64, slot_bytes=256)  # the layout that is asked for holds, whatever stands in the old
    [lost] = again.lost
    assert (lost.payload, lost.mark) == (b"two", 2**64 - 1)
    assert again.begin(b"x" * 200) not in (lost.slot, again.none)
    assert len({again.begin(b"new") for _ in range(62)} - {again.none}) == 62
    assert again.append(b"end of two", lost.slot)
    assert list(taken(again)) == [b"end of one", b"end of two"]
    again.close()
    third = opened(tmp_path, slots=1)  # fewer, and smaller ones: what runs has its own
    assert sorted(each.payload for each in third.lost) == [b"new"] * 62 + [b"x" * 200]
    assert third.begin(b"none is left") == third.none
    third.close()


def test_without_room_for_slots_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that begins could be said: whatever must be recorded may not begin."""
    allocate = os.posix_fallocate

    def nearly(descriptor: int, at: int, size: int) -> None:
        if size == 128 * 8 + 64 + 8 * 9:
            raise OSError(errno.ENOSPC, "no space left on device")
        allocate(descriptor, at, size)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", nearly)
        journal = opened(tmp_path)
        assert journal.full
        assert journal.append(b"kept all the same")
    journal.tend()
    assert not journal.full
    assert journal.begin(b"something") != journal.none
    journal.close()


def test_slots_that_find_no_room_on_the_disk_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(tmp_path, slots=2)
    journal.begin(b"runs")
    journal.close()

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        again = opened(tmp_path, slots=64)
        assert [each.payload for each in again.lost] == [b"runs"]
        assert again.none == 2
        again.close()
    assert [each.payload for each in opened(tmp_path, slots=64).lost] == [b"runs"]


def test_a_copied_folder_comes_to_another_epoch_and_can_take_another_name(tmp_path: Path) -> None:
    journal = opened(tmp_path / "a")
    journal.append(b"one")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    copies = [opened(tmp_path / "b", seed=5), opened(tmp_path / "c", seed=6)]
    assert copies[0].identity == copies[1].identity == journal.identity
    assert len({copies[0].epoch, copies[1].epoch, journal.epoch}) == 3
    copies[0].append(b"two")
    copies[0].rename()
    batches = list(iter(lambda: _step(copies[0]), None))
    assert [batch.payloads for batch in batches] == [[b"one"], [b"two"]]
    assert {batch.journal for batch in batches} == {copies[0].identity.journal} != {journal.identity.journal}
    copies[0].close()
    assert opened(tmp_path / "b", seed=7).identity == copies[0].identity


def _step(journal: Journal) -> Any:
    batch = journal.peek(100, 1 << 20)
    if batch is not None:
        journal.acknowledge(batch)
    return batch


def test_a_payload_has_its_bound(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_bytes=1 << 18)
    slot = journal.begin(b"it")
    with pytest.raises(ValueError, match="at most"):
        journal.append(bytes(MAX_PAYLOAD + 1), slot)
    assert journal.append(bytes(MAX_PAYLOAD), slot)  # and nothing had changed
    assert list(taken(journal)) == [bytes(MAX_PAYLOAD)]
    journal.close()
