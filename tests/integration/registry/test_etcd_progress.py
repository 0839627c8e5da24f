"""A watch gets on while nothing changes: what it needs of the history is not compacted for want of changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from aetcd import rpc

from libs.registry import EtcdStore, WatchEvent

PREFIX = "/t/"


def answer(revision: int, **fields: Any) -> Any:
    """As an etcd whose store is at this revision."""
    return rpc.WatchResponse(header=rpc.ResponseHeader(cluster_id=1, raft_term=1, revision=revision), **fields)


def change(revision: int) -> Any:
    kv = rpc.KeyValue(key=(PREFIX + "a").encode(), value=b"1", mod_revision=revision)
    return answer(revision, events=[rpc.Event(kv=kv)])


class Scripted:
    """An etcd that answers each watch by the next script, then ends it."""

    def __init__(self, *scripts: list[Any]) -> None:
        self._scripts = list(scripts)
        self.asked: list[tuple[int, bool]] = []
        """From which revision, and whether it wants to know of progress."""

    async def watch(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        wanted = (await anext(aiter(requests))).create_request
        self.asked.append((wanted.start_revision, wanted.progress_notify))
        for each in self._scripts.pop(0):
            yield each


async def test_f8_progress_is_asked_for_and_moves_the_watch_on() -> None:
    etcd = Scripted(
        [answer(12, created=True), change(11), answer(50)],
        [answer(50, created=True), answer(40), change(49), change(60)],
    )
    method = grpc.stream_stream_rpc_method_handler(
        etcd.watch, rpc.WatchRequest.FromString, rpc.WatchResponse.SerializeToString
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("etcdserverpb.Watch", {"Watch": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    store, seen = EtcdStore([f"127.0.0.1:{port}"]), list[WatchEvent]()
    async with asyncio.timeout(20), aclosing(store.watch(PREFIX, 11)) as batches:
        while not seen or seen[-1].mod_revision < 60:
            seen += (await anext(batches)).events
    assert [event.mod_revision for event in seen] == [11, 60], "nothing is told twice, what is older than known neither"
    assert etcd.asked == [(11, True), (51, True)]
    await store.close()
    await server.stop(None)
