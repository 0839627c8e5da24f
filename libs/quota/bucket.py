"""Tenants in buckets, each small enough to be looked at between two decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from libs.quota.settled import Key, SettledIds

if TYPE_CHECKING:
    from libs.quota.lease import Lease
    from libs.quota.scope import Scope

BUCKETS = 4096
"""A multiple of the number of shards: a bucket is in one shard (`libs.sharding.shard_of`)."""


def bucket_of(tenant: str) -> int:
    """The same in every process and version."""
    return crc32(tenant.encode()) % BUCKETS


class Bucket:
    """What is known of some tenants."""

    __slots__ = ("leases", "number", "scopes", "settled")

    def __init__(self, number: int, retention_ns: int) -> None:
        self.number = number
        self.scopes: dict[Key, Scope] = {}
        """By tenant and model."""
        self.leases: dict[Key, Lease] = {}
        """By tenant and request id."""
        self.settled = SettledIds(retention_ns)
