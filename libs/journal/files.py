"""A journal's folder: appends and marks are stores into mapped memory; everything that blocks is `tend`'s."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from libs.journal import form

_SPARE, _NEXT, _LAID = "spare", "next", "laid"


class JournalLockedError(RuntimeError):
    """Another process has this journal."""


class Batch(NamedTuple):
    """Frames that wait, in their order and without a gap."""

    journal: int
    epoch: int
    start: int
    """The journal's first sequence under this id."""
    first: int
    payloads: list[bytes]
    last: int
    end: int
    """Where in their segment the next one begins."""


class _Mapped:
    """A file in memory. It has its room on the disk from the beginning on: a store into it cannot fail."""

    def __init__(self, path: Path, size: int, head: bytes) -> None:
        """Map a file; one of another size is made anew, with this at its beginning.

        :raises OSError: there is no room, or it cannot be opened.
        """
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if (known := os.fstat(self.descriptor).st_size) != size:
                os.ftruncate(self.descriptor, 0)
                os.posix_fallocate(self.descriptor, 0, size)
            self.data = mmap.mmap(self.descriptor, size)
            if known != size:
                self.data[: len(head)] = head
        except OSError:
            os.close(self.descriptor)
            path.unlink(missing_ok=True)
            raise

    def sync(self) -> None:
        """Bring it to the disk, names apart."""
        os.fdatasync(self.descriptor)

    def close(self, *, remove: bool = False) -> None:
        """Let it go."""
        self.data.close()
        os.close(self.descriptor)
        if remove:
            self.path.unlink(missing_ok=True)


@dataclass(slots=True, eq=False)
class _Segment:
    file: _Mapped
    epoch: int
    first: int
    end: int = form.SEGMENT_HEAD
    """Where the next frame begins."""


class Journal:
    """One process's journal. From one thread, but for `tend`, which may run in another, once at a time.

    `append` and `begin` copy a few hundred bytes into mapped memory, and `marks[slot] = number` is one store of 8
    bytes: what they did is there however the process ends. A machine that loses its power may lose what came after
    the last `tend`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int,
        segment_bytes: int = 4 << 20,
        slots: int = 4096,
        slot_bytes: int = 1024,
        rng: Random,
    ) -> None:
        """Open a folder, which is made where there is none, under a new epoch. A full disk is no error: see `full`.

        `rng` draws what tells this journal from others: a `SystemRandom` but in tests.

        :raises JournalLockedError: another process has it.
        :raises OSError: it cannot be read.
        """
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._max_segments = max(2, max_bytes // segment_bytes)
        self._rng = rng
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise JournalLockedError(f"another process has {directory}") from error
        for rest in (_SPARE, _NEXT, _LAID):
            (directory / rest).unlink(missing_ok=True)
        self._slots_path, slots_data = directory / "slots", b""
        if self._slots_path.exists():
            slots_data = self._slots_path.read_bytes()
        paths = {}
        for path in directory.glob("*.seg"):
            with contextlib.suppress(ValueError):
                paths[form.named(path.name)] = path
        # One at a time in memory would do; all of them are bounded by `max_bytes`.
        read = [form.Segment(*name, paths[name].read_bytes()) for name in sorted(paths)]
        left = form.recover(read, slots_data)
        self.identity = left.identity or form.Identity(rng.getrandbits(64))
        """What tells this folder from every other one, whatever it is called."""
        self.epoch = form.next_epoch(left.epoch, rng.getrandbits(32))
        self.dropped = 0
        """Payloads for which there was no room; each used up a sequence."""
        self._last, self._kept, self._acknowledged = left.last, left.kept, left.acknowledged
        self._openings = self.epoch >> 32 << 32
        self._segments: deque[_Segment] = deque()
        for each, end in zip(read, left.ends, strict=True):
            file = _Mapped(paths[each.epoch, each.first], len(each.data), b"")
            self._segments.append(_Segment(file, each.epoch, each.first, end))
        self._active: _Segment | None = None
        self._spare: _Mapped | None = None
        self._refused = False  # the disk had no room for another segment
        self._cursor = form.SEGMENT_HEAD
        self._unsynced: list[_Segment] = []
        self._done: list[_Segment] = []
        self._named = False
        self._geometry = form.geometry_for(form.Geometry(slots, slot_bytes), left.running)
        running = left.running
        if running and form.geometry_of(slots_data) != self._geometry:
            running = self._lay_out(running, slots_data)
        self._slots: _Mapped | None = None
        self.marks: memoryview
        """One number per slot, 0 to 2**64 - 1; `none` is the place of those that have no slot."""
        self._words: memoryview
        self._set_aside()
        self.none = self._geometry.slots
        self.lost = running
        """What former lives had begun and not ended: `append` with its slot ends it."""
        held = {each.slot for each in running}
        self._numbers = {each.slot: each.number for each in running}
        self._free = [place for place in range(self._geometry.slots - 1, -1, -1) if place not in held]
        self._map_slots(held)
        self._next_segment(self._last + 1)
        with contextlib.suppress(OSError):
            self.tend()

    # ---- the writer's side -------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """A further payload may find no room, neither on the disk nor within `max_bytes`; or what begins, no slot."""
        crowded = self._refused or len(self._segments) >= self._max_segments
        return self._slots is None or (crowded and self._spare is None and self._room < form.MAX_PAYLOAD + 64)

    @property
    def longest(self) -> int:
        """Bytes that a slot holds of what begins."""
        return self._geometry.size - form.SLOT_HEAD

    @property
    def pending(self) -> bool:
        """Something waits for its acknowledgement."""
        return self._kept > self._acknowledged

    @property
    def disk_bytes(self) -> int:
        """Disk that segments take."""
        return sum(len(each.file.data) for each in self._segments)

    def begin(self, payload: bytes) -> int:
        """Say that something has begun, and take a slot for it; `none` where all are taken or it does not fit."""
        if not self._free or self._slots is None or len(payload) > self.longest:
            return self.none
        place = self._free.pop()
        self._openings += 1
        self._numbers[place] = self._openings
        self.marks[place] = 0
        written = form.slot(self._openings, payload)
        at = self._geometry.at(place)
        self._slots.data[at : at + len(written)] = written
        return place

    def append(self, payload: bytes, slot: int = -1) -> bool:
        """Add a payload, which ends what has the slot, if one is named. False: there is no room; it is dropped and
        counted, and its sequence is one that never comes. What has the slot ends all the same.

        :raises ValueError: it is longer than `MAX_PAYLOAD`.
        """
        if len(payload) > form.MAX_PAYLOAD:
            raise ValueError(f"a payload has at most {form.MAX_PAYLOAD} bytes")
        number = self._numbers.pop(slot, 0)
        self._last += 1
        written = form.frame(self.epoch, self._last, number, payload)
        kept = len(written) <= self._room or self._next_segment(self._last)
        if kept and (active := self._active) is not None:
            active.file.data[active.end : (end := active.end + len(written))] = written
            active.end, self._kept = end, self._last
        else:
            self.dropped += 1
            self._words[form.LAST_USED] = self._last
        if number:  # after the frame: whoever is killed in between has ended it, and finds that so
            self._empty(slot)
        return kept

    def release(self, slot: int) -> None:
        """End what has the slot, of which nothing is to be said."""
        if self._numbers.pop(slot, 0):
            self._empty(slot)

    def _empty(self, slot: int) -> None:
        if self._slots is not None:
            at = self._geometry.at(slot)
            self._slots.data[at : at + form.SLOT_HEAD] = bytes(form.SLOT_HEAD)
            self._free.append(slot)

    # ---- the reader's side -------------------------------------------------------------------------------------------

    def peek(self, limit: int, max_bytes: int) -> Batch | None:
        """The oldest that wait, of one epoch; None where nothing does."""
        while self._segments:
            each = self._segments[0]
            found = form.frames(each.file.data, each.epoch, after=each.first - 1, start=self._cursor, stop=each.end)
            taken = form.run_of((one for one in found if one.sequence > self._acknowledged), limit, max_bytes)
            if taken:
                payloads = [one.payload for one in taken]
                (journal, start), last = self.identity, taken[-1]
                return Batch(journal, each.epoch, start, taken[0].sequence, payloads, last.sequence, last.end)
            if each is self._active:
                return None
            self._segments.popleft()
            self._done.append(each)
            self._cursor = form.SEGMENT_HEAD
        return None

    def acknowledge(self, batch: Batch) -> None:
        """A batch that `peek` gave is safe elsewhere."""
        self._cursor = batch.end
        self._acknowledged = self._words[form.ACKNOWLEDGED] = batch.last

    def rename(self) -> None:
        """Become another journal to whoever tells journals apart: this folder was copied, or put back as it was once,
        and what waits in it must not be taken for what its other self has sent."""
        self.identity = form.Identity(self._rng.getrandbits(64), self._acknowledged + 1)
        head = form.segment_head(self.identity)
        for each in self._segments:
            each.file.data[: len(head)] = head
        if self._spare is not None:
            self._spare.data[: len(head)] = head

    # ---- what blocks -------------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Bring to the disk what was written, make room for what will be, remove what is acknowledged: now and then.

        :raises OSError: the disk is full or fails; the next call tries again.
        """
        self._map_slots(set())
        while self._unsynced:
            self._unsynced[0].file.sync()
            del self._unsynced[0]
        done, active, slots = len(self._done), self._active, self._slots
        if active is not None:
            active.file.sync()
        if slots is not None:
            slots.sync()
        # Last: what ended an opening must outlive a power loss as long as the opening does.
        for _ in range(done):
            self._done.pop(0).file.close(remove=True)
        if not self._named:
            self._named = True
            _sync_directory(self._directory)
        if self._spare is None and len(self._segments) < self._max_segments:
            self._spare = self._fresh(_SPARE)
            self._refused = False

    def close(self) -> None:
        """Bring everything to the disk and give the lock back. What comes later is dropped."""
        with contextlib.suppress(OSError):
            self.tend()
        self.marks.release()
        self._words.release()
        for each in [*self._segments, *self._done]:
            each.file.close()
        if self._slots is not None:
            self._slots.close()
        if self._spare is not None:
            self._spare.close(remove=True)
        os.close(self._lock)
        self._segments.clear()
        self._active = self._slots = self._spare = None
        self._max_segments = 0
        self._set_aside()

    def _set_aside(self) -> None:
        """Marks go nowhere."""
        self.marks = memoryview(bytearray(8 * (self._geometry.slots + 1))).cast("Q")
        self._words = memoryview(bytearray(form.SLOTS_HEAD)).cast("Q")

    # ---- segments ----------------------------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return 0 if self._active is None else len(self._active.file.data) - self._active.end

    def _next_segment(self, first: int) -> bool:
        """Go on in another segment, with that sequence; False where there is none to be had."""
        spare, self._spare = self._spare, None
        name = self._directory / form.segment_name(self.epoch, first)
        try:
            if spare is None:
                if len(self._segments) >= self._max_segments:
                    return False
                spare = self._fresh(_NEXT)
            os.rename(spare.path, name)
        except OSError:
            self._refused = True
            return False
        spare.path, self._named = name, False
        if self._active is not None:
            self._unsynced.append(self._active)
        self._active = _Segment(spare, self.epoch, first)
        self._segments.append(self._active)
        return True

    def _fresh(self, name: str) -> _Mapped:
        return _Mapped(self._directory / name, self._segment_bytes, form.segment_head(self.identity))

    def _lay_out(self, running: Sequence[form.Opening], known: bytes) -> tuple[form.Opening, ...]:
        """Slots as they were asked for, with what a former life had begun in the first of them; a process that is
        killed meanwhile has the old ones. Where the disk has no room for new ones those stay."""
        moved = tuple(each._replace(slot=place) for place, each in enumerate(running))
        try:
            laid = _Mapped(self._directory / _LAID, self._geometry.total, known[: form.SLOTS_HEAD])
            form.lay_out(laid.data, self._geometry, moved)
            laid.sync()
            laid.close()
            os.rename(laid.path, self._slots_path)
        except OSError:
            self._geometry = form.geometry_of(known) or self._geometry
            return tuple(running)
        return moved

    def _map_slots(self, held: set[int]) -> None:
        """Have the slots in memory, those that are not `held` empty; without them nothing can be begun."""
        if self._slots is not None:
            return
        with contextlib.suppress(OSError):
            if not held:
                self._slots_path.unlink(missing_ok=True)
            slots = _Mapped(self._slots_path, self._geometry.total, form.slots_head(self._geometry))
            for place in self._free if held else ():
                slots.data[(at := self._geometry.at(place)) : at + form.SLOT_HEAD] = bytes(form.SLOT_HEAD)
            view = memoryview(slots.data)
            self._words = view[: form.SLOTS_HEAD].cast("Q")
            self.marks = view[form.SLOTS_HEAD : self._geometry.slots_at].cast("Q")
            self._words[form.ACKNOWLEDGED], self._words[form.LAST_USED] = self._acknowledged, self._last
            self._slots = slots


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
