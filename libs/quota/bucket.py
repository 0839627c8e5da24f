"""Buckets: tenants in parts, each small enough to be looked at between two decisions."""

from __future__ import annotations

from zlib import crc32

BUCKETS = 4096
"""A multiple of the number of shards: a bucket is in one shard (`libs.sharding.shard_of`)."""


def bucket_of(tenant: str) -> int:
    """The same in every process and version."""
    return crc32(tenant.encode()) % BUCKETS
