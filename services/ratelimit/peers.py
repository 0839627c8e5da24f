"""The other replicas: what is decided here is told to each, and what one of them is ahead by is fetched whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import WeirError
from libs.mux import MuxClient, Semantics
from libs.quota import Joining, Logged, Replica
from libs.telemetry import get_logger
from services.ratelimit import metrics
from services.ratelimit.convert import piece_of, replicate_of
from services.ratelimit.links import Link
from services.ratelimit.pauses import uncollected
from services.ratelimit.ports import Nanoseconds

log = get_logger(__name__)


class Peers:
    """Direct streams to all other replicas.

    :param instance: this replica.
    :param open_link: by address.
    :param peer_seconds: see `Settings`; also of `replicate_seconds` and so on.
    """

    def __init__(
        self,
        *,
        instance: str,
        replica: Replica,
        open_link: Callable[[str], Link],
        now: Nanoseconds,
        clock: Clock,
        peer_seconds: float,
        join_seconds: float,
        hear_seconds: float,
    ) -> None:
        self._instance = instance
        self._replica = replica
        self._open_link = open_link
        self._now = now
        self._clock = clock
        self._peer_seconds = peer_seconds
        self._join_seconds = join_seconds
        self._hear_seconds = hear_seconds
        self._silent: dict[str, float] = {}
        """Since when a replica owes an answer."""
        self._down: dict[str, float] = {}
        """Since when it has no stream."""
        self._links: dict[str, tuple[str, MuxClient, asyncio.Task[None]]] = {}
        self._last: quota_pb2.Replicate | None = None
        self._behind: set[str] = set()
        self._fetching: dict[str, asyncio.Task[bool]] = {}
        self._group: asyncio.TaskGroup | None = None

    @property
    def others(self) -> frozenset[str]:
        """The other replicas that the registry knows."""
        return frozenset(self._links)

    @property
    def sides(self) -> int:
        """1 while more than half of the replicas that the registry knows are heard, this one among them; else how many
        there are, each of which may be alone and decides for its part only."""
        count, now, heard = len(self._links) + 1, self._clock.monotonic(), 1
        for name, (_, mux, _) in self._links.items():
            if mux.connected:
                self._down.pop(name, None)
            else:
                self._down.setdefault(name, now)
            heard += min(self._silent.get(name, now), self._down.get(name, now)) >= now - self._hear_seconds
        return 1 if 2 * heard > count else count

    async def run(self) -> None:
        """Keeps the streams open until cancelled; `update` says to whom."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await asyncio.Event().wait()

    def update(self, members: Mapping[str, registry_pb2.Endpoint]) -> None:
        """Makes these the replicas, this one among them or not; the state of a new one is fetched. Call while `run`
        runs."""
        metrics.REPLICAS.set(len(members.keys() | {self._instance}))
        wanted = {name: member.address for name, member in members.items() if name != self._instance}
        for name, (address, _, task) in list(self._links.items()):
            if wanted.get(name) != address:
                task.cancel()
                del self._links[name]
                self._behind.discard(name)
                self._silent.pop(name, None)
                self._down.pop(name, None)
        for name, address in wanted.items():
            if name not in self._links and self._group is not None:
                link = self._open_link(address)
                task = self._group.create_task(link.run(), name=f"peer.{name}")
                self._links[name] = (address, link.mux, task)
                self.want_state(name)

    def send(self, logged: Logged) -> None:
        """Tells a batch to every replica that can be reached; the others will miss it and ask for the state."""
        if not self._links:
            self._last = None
            return
        self._last = message = replicate_of(logged)
        for name, (_, mux, _) in self._links.items():
            if mux.connected:
                self._tell(name, mux, message)
            else:
                self._behind.add(name)

    def remind(self) -> None:
        """Tells the last batch again to those who missed one and can be reached now: they ask for the state then,
        though nothing more may be decided here for long. Call now and then."""
        for name in [name for name in self._behind if self._links[name][1].connected]:
            self._behind.discard(name)
            if self._last is not None:
                self._tell(name, self._links[name][1], self._last)

    def _tell(self, name: str, mux: MuxClient, message: quota_pb2.Replicate) -> None:
        began = self._clock.monotonic()
        self._silent.setdefault(name, began)

        def told(_: object, error: WeirError | None) -> None:
            if error is None:
                if self._silent.get(name, began) <= began:
                    self._silent.pop(name, None)
                metrics.REPLICATION.observe(self._clock.monotonic() - began)
            elif name in self._links:
                self._behind.add(name)

        try:
            mux.call_nowait(
                quota_pb2.QuotaCall(replicate=message),
                deadline=Deadline(began + self._peer_seconds),
                semantics=Semantics.RETRY,
                on_reply=told,
            )
        except WeirError as error:
            self._behind.add(name)
            log.warning("replica_not_told", error=error.reason.name)

    async def join(self) -> bool:
        """Returns once the state of one other replica was taken over; False when there is none that gives it in time.

        The states of all are asked for as they become known (`update`).
        """
        pending = set(self._fetching.values())
        try:
            async with asyncio.timeout(self._join_seconds):
                while pending:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    if any(task.result() for task in done):
                        return True
        except TimeoutError:
            log.warning("state_not_fetched", replicas=len(self._links))
        return False

    def want_state(self, origin: str) -> None:
        """Fetches a replica's whole state, unless that is under way."""
        if origin in self._links and origin not in self._fetching and self._group is not None:
            task = self._group.create_task(self._fetch(origin, self._links[origin][1]), name=f"fetch.{origin}")
            self._fetching[origin] = task
            task.add_done_callback(lambda _: self._fetching.pop(origin, None))

    async def _fetch(self, origin: str, mux: MuxClient) -> bool:
        joining: Joining | None = None
        cursor = b""
        try:
            with uncollected():
                while True:
                    fetch = quota_pb2.FetchState(instance=self._instance, cursor=cursor)
                    reply = await mux.call(
                        quota_pb2.QuotaCall(fetch_state=fetch),
                        deadline=Deadline(self._clock.monotonic() + self._peer_seconds),
                        semantics=Semantics.RETRY,
                    )
                    joining = self._replica.join(piece_of(reply.state), self._now(), joining)
                    cursor = reply.state.cursor
                    if not cursor:
                        break
        except WeirError as error:
            metrics.STATE_FAILED.inc()
            log.warning("state_fetch_failed", peer=origin, error=error.reason.name)
            return False
        metrics.STATE_FETCHED.inc()
        log.info("state_joined", peer=origin, leases=self._replica.ledger.live_leases)
        return True
