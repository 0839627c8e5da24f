"""Settlements on the disk: as many as there is room for, each until it is over."""

from __future__ import annotations

from weir.quota.v1 import quota_pb2

from libs.limiter import Settlements


class Disk:
    """In memory."""

    def __init__(self) -> None:
        self.notes: dict[int, bytes] = {}
        self._last = 0

    def keep(self, note: bytes) -> int:
        self._last += 1
        self.notes[self._last] = note
        return self._last

    def release(self, place: int) -> None:
        del self.notes[place]


def test_no_more_are_kept_than_leave_room_for_what_runs() -> None:
    disk = Disk()
    settlements = Settlements(disk, most=2)
    told = [quota_pb2.Settle(request_id=name, tokens=1, over_quota=name == "b") for name in "abcd"]
    first, second, third = map(settlements.begin, told[:3])
    assert third is None
    assert [quota_pb2.Settle.FromString(note) for note in disk.notes.values()] == told[:2]
    settlements.end(third)
    settlements.end(first)
    assert settlements.begin(told[3]) is not None
    assert [quota_pb2.Settle.FromString(note) for note in disk.notes.values()] == told[1::2]
    settlements.end(second)
