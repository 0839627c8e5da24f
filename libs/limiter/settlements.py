"""Settlements that the limiter has not acknowledged, kept on this process's disk.

A settlement leaves a little later, with others, while the record of its request is on the disk at once: a process that
is killed in between would leave a request that is billed and that no limit ever counted. So its next life settles again
what nobody has acknowledged, which changes nothing where the limiter had heard of it.
"""

from __future__ import annotations

from typing import Protocol

from weir.quota.v1 import quota_pb2


class Disk(Protocol):
    """The part of an `AuditWriter` that outlives the process."""

    def keep(self, note: bytes) -> int:
        """Keep it; returns its place."""

    def release(self, place: int) -> None:
        """It is over."""


class Settlements:
    """Of one process.

    :param most: so many are kept at once. While the limiter is away more may be under way: what runs needs room too.
    """

    def __init__(self, disk: Disk, *, most: int) -> None:
        self._disk = disk
        self._most = most
        self._open = 0

    def begin(self, settle: quota_pb2.Settle) -> int | None:
        """It is going to be sent; returns its place, None where it is not kept."""
        if self._open >= self._most:
            return None
        self._open += 1
        return self._disk.keep(settle.SerializeToString())

    def end(self, place: int | None) -> None:
        """It was acknowledged, or nobody tries any more."""
        if place is not None:
            self._open -= 1
            self._disk.release(place)
