"""Tells every live rollout controller what became of requests: the whole table first, then what changed.

Counts are cumulative, so a report that is lost, repeated or late changes nothing; a controller that is away costs a
channel that waits. Nothing here is on a request's path: counts are read from the table when a report is due.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import grpc
from weir.rollout.v1 import rollout_pb2, rollout_pb2_grpc

from libs.clock import Clock
from libs.deadlines import to_seconds
from libs.outcomes.table import OutcomeTable
from libs.registry import RegistrySnapshot
from libs.telemetry import get_logger

log = get_logger(__name__)
SERVICE = "rollout"
"""The service name under which controllers register their endpoints."""
_REPORT_SECONDS = 0.25
_LEAST_SECONDS = 0.02
_FOLLOW_SECONDS = 0.5
_ENTRIES = 128
"""Per frame: with full distributions some 200 kB."""
_PAUSE = (0.1, 2.0)
"""First and longest pause in seconds after a stream broke."""

OpenChannel = Callable[[str], grpc.aio.Channel]


class OutcomeReporter:
    """One stream per controller that is registered. One event loop."""

    def __init__(
        self,
        table: OutcomeTable,
        snapshot: Callable[[], RegistrySnapshot],
        open_channel: OpenChannel,
        *,
        source: str,
        incarnation: str,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """`snapshot` gives the registry as it is known now; `open_channel` makes a channel to an address,
        "host:port"; `incarnation` differs after each start."""
        self._table = table
        self._snapshot = snapshot
        self._open_channel = open_channel
        self._source = source
        self._incarnation = incarnation
        self._clock = clock
        self._rng = rng
        self._replicas: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Follow the registered controllers until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._follow(group)
                await asyncio.sleep(_FOLLOW_SECONDS)

    def _follow(self, group: asyncio.TaskGroup) -> None:
        wanted = {(each.instance, each.address) for each in self._snapshot().endpoints_of(SERVICE)}
        for key in self._replicas.keys() - wanted:
            self._replicas.pop(key).cancel()
        for key in wanted - self._replicas.keys():
            self._replicas[key] = group.create_task(self._report_to(*key), name=f"rollout.{key[0]}")

    async def _report_to(self, instance: str, address: str) -> None:
        pause, longest = _PAUSE
        channel = self._open_channel(address)
        try:
            while True:
                began = self._clock.monotonic()
                try:
                    await self._stream(channel)
                except grpc.aio.AioRpcError as error:
                    log.info("rollout_stream_lost", replica=instance, code=error.code().name)
                except asyncio.InvalidStateError:  # grpc's word for a stream that ended under a write
                    log.info("rollout_stream_lost", replica=instance, code="CLOSED")
                except Exception as error:  # a fault of reporting must not end the gateway
                    log.error("rollout_stream_failed", replica=instance, error=type(error).__name__)
                if self._clock.monotonic() - began > 10 * longest:
                    pause = _PAUSE[0]
                await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
                pause = min(longest, pause * 2)
        finally:
            await channel.close()

    async def _stream(self, channel: grpc.aio.Channel) -> None:
        """One stream, until it breaks."""
        call = rollout_pb2_grpc.RolloutServiceStub(channel).ReportOutcomes(wait_for_ready=True)
        wanted = _Wanted()
        reader = asyncio.get_running_loop().create_task(_listen(call, wanted))
        try:
            sent = -1  # the first report is sent also when there is nothing: the controller knows its gateways by it
            while not reader.done():
                now = self._table.sequence
                if now != sent:
                    for frame in self._frames(sent):
                        await call.write(frame)  # the first one waits for a peer
                    sent = now
                await asyncio.wait((reader,), timeout=wanted.seconds)
                news = asyncio.ensure_future(self._table.beyond(sent))
                try:
                    await asyncio.wait((reader, news), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
            reader.result()
        finally:
            reader.cancel()
            call.cancel()
            await asyncio.wait((reader,))

    def _frames(self, since: int) -> list[rollout_pb2.ReportOutcomesRequest]:
        """What changed after a sequence number, in at least one frame; copied at once: it must not change between two
        frames."""
        arms = list(self._table.arms_since(since, self._clock.time()))
        objectives = list(self._table.objectives_since(since))
        frames: list[rollout_pb2.ReportOutcomesRequest] = []
        while arms or objectives or not frames:
            frames.append(
                rollout_pb2.ReportOutcomesRequest(
                    source=self._source,
                    incarnation=self._incarnation,
                    arms=arms[:_ENTRIES],
                    objectives=objectives[:_ENTRIES],
                )
            )
            del arms[:_ENTRIES], objectives[:_ENTRIES]
        return frames


class _Wanted:
    """How often a controller wants to hear."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = _REPORT_SECONDS


async def _listen(
    call: grpc.aio.StreamStreamCall[rollout_pb2.ReportOutcomesRequest, rollout_pb2.ReportOutcomesResponse],
    wanted: _Wanted,
) -> None:
    async for response in call:
        if (seconds := to_seconds(response.next)) > 0:
            wanted.seconds = max(_LEAST_SECONDS, seconds)
