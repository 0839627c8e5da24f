"""How far a push is, that it goes on, and that it reads a file once where its digest is known."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from libs.artifacts import LocalBlobStore, Options, PushError, push
from libs.artifacts.progress import Meter, Watch, line_of, size_in_words, time_in_words
from libs.clock import ManualClock
from tests.support.checkpoint import as_in_cache, write_checkpoint

MIB = 1 << 20
OPTIONS = Options(name="m", version="1", tier="fast", pool="p", architecture="A", context_length=8)


class Seen(Watch):
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.stages: dict[str, int] = {}
        self.done: dict[str, int] = {}

    def begin(self, stage: str, whole: int) -> None:
        self.stages[stage], self.done[stage], self._now = whole, 0, stage

    def add(self, count: int) -> None:
        self.done[self._now] += count

    def skip(self, count: int) -> None:
        self.stages[self._now] -= count


def test_a_line_says_how_far_how_fast_and_how_long() -> None:
    said = "sending 1.2 GB of 3.4 GB (35%), 163 MB/s, 13 s left"
    assert line_of("sending", 1_200_000_000, 3_400_000_000, 163_000_000) == said
    assert line_of("sending", 0, 2048, 0.0) == "sending 0 B of 2.05 kB (0%)"
    assert line_of("digesting", 0, 0, 0.0) == "digesting 0 B of 0 B"
    assert [time_in_words(each) for each in (0.4, 59.6, 185, 7800)] == ["0 s", "1:00 min", "3:05 min", "2:10 h"]


@given(st.integers(0, 1 << 62))
def test_a_size_is_short_and_near_the_truth(size: int) -> None:
    number, unit = size_in_words(size).split()
    assert "e" not in number
    near = float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
    assert near == pytest.approx(size, rel=0.006)


def test_lines_come_now_and_then_and_look_back_a_little() -> None:
    clock, lines = ManualClock(), list[str]()
    meter = Meter(clock.monotonic, lines.append)
    meter.begin("sending", 100_000_000)
    meter.skip(50_000_000)
    for _ in range(1000):
        clock.advance(0.01)
        meter.add(10_000)
    assert 90 <= len(lines) <= 101
    assert lines[-1].startswith("sending 9.9")
    assert lines[-1].endswith("of 50 MB (20%), 1 MB/s, 40 s left")
    clock.advance(10)
    meter.add(10_000_000)
    assert meter.rate == pytest.approx(1e6)
    meter.begin("sending", 1)
    meter.add(1)
    assert lines[-1] == "sending 1 B of 1 B (100%)"


async def test_a_push_is_seen_from_its_first_byte_to_its_last(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    size = sum(path.stat().st_size for path in folder.iterdir())
    store, seen = LocalBlobStore(tmp_path / "blobs"), Seen()
    await push(folder, store, OPTIONS, watch=seen)
    assert seen.stages == seen.done == {"digesting": size, "sending": size}
    await push(folder, store, OPTIONS, watch=seen)
    assert seen.stages == seen.done == {"digesting": size, "sending": 0}


async def test_a_large_file_of_the_cache_is_read_once_and_still_checked(tmp_path: Path) -> None:
    snapshot = as_in_cache(write_checkpoint(tmp_path / "model"), tmp_path / "hub")
    weights = (snapshot / "model.safetensors").resolve()
    store, seen = LocalBlobStore(tmp_path / "blobs"), Seen()
    version = (await push(snapshot, store, OPTIONS, watch=seen)).version
    assert seen.stages["sending"] - seen.stages["digesting"] == weights.stat().st_size
    named = {each.path: each.sha256 for each in version.artifacts}
    assert named["model.safetensors"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    with weights.open("ab") as file:
        file.write(b"x")
    with pytest.raises(PushError, match=r"model\.safetensors .* is not what its digest says"):
        await push(snapshot, LocalBlobStore(tmp_path / "others"), OPTIONS)
    # Of the others, which it ended, a part may stay.
    assert not (tmp_path / "others" / "tmp" / f"{named['model.safetensors']}.part").exists()


async def test_whoever_interrupts_a_push_waits_for_no_file(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"x" * 8 * MIB)
    at, on = threading.Event(), threading.Event()

    class Held(Seen):
        def add(self, count: int) -> None:
            super().add(count)
            if self._now == "sending" and count == MIB:
                at.set()
                on.wait()

    running = asyncio.create_task(push(folder, LocalBlobStore(tmp_path / "blobs"), OPTIONS, watch=Held()))
    await asyncio.to_thread(at.wait)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert (tmp_path / "blobs" / "tmp" / f"{digest}.part").stat().st_size == 2 * MIB
