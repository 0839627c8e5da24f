"""Keys to shards."""

from __future__ import annotations

from zlib import crc32

SHARDS = 16
"""Shards of a service whose state is split by key; also the most streams that one caller has open to it."""

SHARD_HEADER = "x-weir-shard"
"""The stream metadata that names the shard, a decimal number; the ring hash of the mesh reads it."""


def shard_of(key: str, shards: int = SHARDS) -> int:
    """The shard of a key, 0 to `shards` - 1: the same in every process and version.

    :raises ValueError: fewer than one shard.
    """
    if shards < 1:
        raise ValueError("there must be at least one shard")
    return crc32(key.encode()) % shards
