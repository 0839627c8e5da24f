"""The registry service as a source of views: what a process follows of it, over `Watch`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from random import Random
from typing import Any

import grpc
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs.config import TlsFiles
from libs.errors import Reason, WeirError, from_rpc_error
from libs.registry.diff import listing_diff, remember
from libs.registry.ports import KeyValue, Listing, WatchBatch, WatchEvent
from libs.resources.codec import encode, key_of
from libs.resources.kinds import BY_NAME, BY_PLURAL
from libs.rpc import make_channel

_log = logging.getLogger(__name__)
SERVER = "registry.weir.internal"
_RETRY = (0.05, 1.0)
"""First and longest pause in seconds between two attempts to open a watch."""
_SILENT = 20.0
"""Seconds without a message, bookmarks included, after which a watch is opened anew: its server hangs."""
_LONGEST = 1800.0
"""Seconds of one stream; then it is opened anew, so that watchers spread over replicas that were added."""
_BROKEN = (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError)


class RegistrySource:
    """A `Source` over one of the registry's processes, whichever answers."""

    def __init__(
        self, target: str, kinds: Sequence[str], *, tls: TlsFiles | None = None, rng: Random | None = None
    ) -> None:
        """:param target: "xds:///registry.weir.internal", or addresses as gRPC knows them.

        :param kinds: plural names of the kinds to follow.
        """
        name = None if target.startswith("xds:") else SERVER
        self._channel: Any = make_channel(target, tls=tls, server_name=name)
        self._stub: Any = registry_pb2_grpc.RegistryServiceStub(self._channel)
        self._kinds = [BY_PLURAL[kind].name for kind in kinds]
        self._rng = rng or Random()  # noqa: S311 - jitter, not a secret
        self._closed = False
        self.available = True

    async def get_prefix(self, prefix: str, *, since: int = 0) -> Listing:
        """See `Source.get_prefix`: everything that is followed, wherever it lies."""
        kvs: list[KeyValue] = []
        try:
            async with aclosing(self._responses(0, since)) as responses:
                async for response in responses:
                    kvs += map(_key_value, response.resources)
                    if not response.more:
                        self.available = True
                        return Listing(tuple(kvs), response.revision)
        except _BROKEN as error:
            raise self._failed(error) from error
        raise self._failed(None)

    async def watch(
        self, prefix: str, start_revision: int, *, known: Mapping[str, int] | None = None
    ) -> AsyncGenerator[WatchBatch, None]:
        """See `Source.watch`."""
        state = dict(known or {})
        following = start_revision
        pause, longest = _RETRY
        while not self._closed:
            try:
                async with aclosing(self._batches(following)) as batches:
                    async for batch in batches:
                        pause, self.available = _RETRY[0], True
                        following = batch.revision + 1
                        if batch.events:
                            remember(state, batch)
                            yield batch
            except asyncio.CancelledError:
                # grpc ends the reads of a closed channel so; only a cancellation of our task may go on.
                task = asyncio.current_task()
                if not self._closed or (task is not None and task.cancelling()):
                    raise
                return
            except _BROKEN as error:
                if self._failed(error).reason is Reason.REVISION_GONE and (
                    merged := await self._listed_again(state, following)
                ):
                    following = merged.revision + 1
                    if merged.events:
                        remember(state, merged)
                        yield merged
                    continue
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(longest, pause * 2)

    async def close(self) -> None:
        """See `Source.close`."""
        self._closed = True
        await self._channel.close()

    async def _listed_again(self, state: Mapping[str, int], following: int) -> WatchBatch | None:
        """What differs from what was known; None: the registry is away."""
        try:
            listing = await self.get_prefix("", since=following - 1)
        except WeirError:
            return None
        _log.warning("registry_history_gone")
        return listing_diff(listing, state, at=following - 1) or WatchBatch(listing.revision, ())

    async def _batches(self, following: int) -> AsyncGenerator[WatchBatch, None]:
        """Whole revisions; one of a bookmark is empty."""
        events: list[WatchEvent] = []
        async with aclosing(self._responses(following)) as responses:
            async for response in responses:
                events += _events(response)
                if not response.more:
                    yield WatchBatch(response.revision, tuple(events))
                    events = []

    async def _responses(self, from_revision: int, at_least: int = 0) -> AsyncGenerator[pb.WatchResponse, None]:
        request = pb.WatchRequest(kinds=self._kinds, from_revision=from_revision, at_least=at_least)
        stream = self._stub.Watch(request, timeout=_LONGEST * self._rng.uniform(0.5, 1.0))
        try:
            while True:
                async with asyncio.timeout(_SILENT):
                    response = await stream.read()
                if response is grpc.aio.EOF:
                    # Ended in order, by a server that drains; any other end is raised.
                    return
                yield response
        finally:
            stream.cancel()

    def _failed(self, error: BaseException | None) -> WeirError:
        self.available = False
        if isinstance(error, grpc.aio.AioRpcError):
            mapped = from_rpc_error(error)
            if mapped.reason is Reason.REVISION_GONE:
                return mapped
            if mapped.reason in (Reason.PERMISSION_DENIED, Reason.INVALID_REQUEST):
                _log.error("registry_refuses: %s", mapped.message)
        return WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the registry does not answer", retry_after=1.0)


def _key_value(resource: pb.Resource) -> KeyValue:
    return KeyValue(key_of(resource), encode(resource), resource.metadata.revision)


def _events(response: pb.WatchResponse) -> Iterable[WatchEvent]:
    for resource in response.resources:
        yield WatchEvent(key_of(resource), encode(resource), resource.metadata.revision)
    for gone in response.deleted:
        yield WatchEvent(BY_NAME[gone.kind].prefix + gone.name, None, gone.revision)
