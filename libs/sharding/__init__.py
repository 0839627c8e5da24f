"""State that has one owner among the replicas of a service: which shard a key is in, and when the owners change.

A caller puts a key's shard into the stream's metadata (`SHARD_HEADER`) and the mesh's ring hash picks the replica that
owns it. A long-lived stream would stay where it was opened, so the replicas watch their own set (`Members`) and send
their streams away when it changes (`libs.mux.MuxServer.rebalance`): the callers open them again where the ring says.
"""

from libs.sharding.members import Members
from libs.sharding.shard import SHARD_HEADER, SHARDS, shard_of

__all__ = ["SHARDS", "SHARD_HEADER", "Members", "shard_of"]
