"""Of several clients, the one that carries the calls of all whose streams lead to the same process."""

from __future__ import annotations

from collections.abc import Sequence

from libs.mux.client import MuxClient


def carrier(client: MuxClient, beside: Sequence[MuxClient]) -> MuxClient:
    """The first of `beside` whose stream is open to the instance that `client`'s is open to; else `client` itself.

    Where the key of a stream (a shard, a pool) says which replica takes it, only a stream of that key knows where that
    is. So each key keeps its own, and those that carry nothing cost nothing; what is said on one of them travels in
    fewer and fuller messages than on many. A call may then come to a replica after the key has moved from it: the
    replica refuses what it must not do (`NOT_OWNER`), and the call is repeated on the key's own stream.
    """
    if client.connected:
        for other in beside:
            if other.connected and other.instance == client.instance:
                return other
    return client


def give_up_all(instance: str, clients: Sequence[MuxClient]) -> None:
    """An instance stands still, as one of its streams has found: the others, which carried nothing, are lost too."""
    for client in clients:
        if client.connected and client.instance == instance:
            client.give_up()
