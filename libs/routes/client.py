"""Routing by what the router last told, on the process's own snapshot; asked only where that does not suffice.

A route follows from the registry, the caller and the breakers (libs/routing, libs/breaker). The router tells on its
stream which revision it decides on and where its breakers stand. With that the process resolves by itself, and asks
- while a zone of the version is half-open, since the router gives out the probes;
- while the router has seen more of the registry than this process;
- when it was told nothing for longer than that lasts.
Where nobody answers, it resolves by breakers that know its own outcomes alone, and says so. One router decides; all of
them hear what became of requests, so that their breakers agree: see `run`.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from weir.router.v1 import router_pb2

from libs.breaker import BreakerBoard, BreakerOptions, Standing
from libs.clock import Clock
from libs.deadlines import Deadline, to_seconds
from libs.errors import WeirError
from libs.mux import MuxClient, Replicas, Semantics, start_decision, tell
from libs.routing import Mirror, Route, RouteRequest, RoutingTable

_REPORT_SECONDS = 0.5
"""Until a router has said how often it wants to hear."""
_FOLLOW_SECONDS = 10.0
"""Routers tell something at least every two seconds; this bounds what is waited for of one that does not."""
_PAUSE_SECONDS = 0.02
"""Between two states: a registry that changes all the time must not make a storm of them."""


class _Told:
    """What the router told last."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._revision = 0
        self._board = BreakerBoard()

    def take(self, state: router_pb2.RouterState, now: float) -> None:
        """Go by this from now on."""
        slow_start = to_seconds(state.slow_start)
        if slow_start != self._board.options.slow_start:
            self._board = BreakerBoard(BreakerOptions(slow_start=slow_start))
        self._board.follow({(told.model_version, told.zone): _standing(told) for told in state.breakers}, now)
        self._until, self._revision = now + to_seconds(state.lasts), state.revision

    def covers(self, revision: int, now: float) -> bool:
        """May a process that has seen this much of the registry resolve by it?"""
        return now < self._until and self._revision <= revision

    def open(self, now: float) -> frozenset[tuple[str, str]]:
        """Versions and zones whose breaker does not let requests through."""
        return frozenset(pair for pair, told in self._board.standings(now).items() if told.half_open_in is not None)

    def arranged(self, route: Route, now: float) -> Route | None:
        """The route with its zones as the breakers have them; None where the router has a probe to give out."""
        if self._board.half_open(route.model_version, route.zones, now):
            return None
        return _with_zones(route, self._board.arrange(route.model_version, route.zones, now))


class RouterClient:
    """Routes of requests, and what became of them. Fallback: the same pure function on this process's snapshot."""

    def __init__(
        self,
        mux: MuxClient,
        table: Callable[[], RoutingTable],
        *,
        zone: str,
        clock: Clock,
        decide_timeout: float,
        open_replica: Callable[[str], MuxClient] | None = None,
        report_seconds: float = _REPORT_SECONDS,
    ) -> None:
        """`table` gives the registry as it is known now; `open_replica` makes a stream to the router at an address:
        without it only the deciding one hears."""
        self._mux = mux
        self._table = table
        self._zone = zone
        self._clock = clock
        self._decide_timeout = decide_timeout
        self._replicas = Replicas(open_replica) if open_replica else None
        self._report_seconds = report_seconds
        self._board = BreakerBoard()  # of this process's own outcomes
        self._told = _Told()
        self._following = False
        self._outcomes: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])

    def start_resolve(self, asked: RouteRequest, *, deadline: Deadline, traceparent: str) -> Future[tuple[Route, bool]]:
        """The route, and whether it is the fallback's; done already where what the router told suffices.

        :raises WeirError: MODEL_NOT_FOUND (through the future).
        """
        if (decided := self._resolve_as_told(asked)) is not None:
            return decided
        resolve = router_pb2.Resolve(
            tenant=asked.tenant,
            model=asked.model,
            sticky_key=asked.sticky_key,
            zone=self._zone,
            user=asked.user,
            session=asked.session,
            request_id=asked.request_id,
        )
        return start_decision(
            self._mux,
            router_pb2.RouterCall(resolve=resolve),
            deadline=Deadline.after(self._decide_timeout, self._clock).earlier(deadline),
            traceparent=traceparent,
            read=_routed,
            fallback=lambda: (self.resolve_here(asked), True),
        )

    def outcome(self, *, pool: str, model_version: str, zone: str, ok: bool) -> None:
        """Feed the breaker of the version in the zone: sent in batches by `run`, and learned here for the fallback. Not
        `ok` means the zone's own fault (`libs.breaker.is_fault`); what says nothing about the zone is not told."""
        self._outcomes[pool, model_version, zone][0 if ok else 1] += 1
        if self._own_pool(model_version) == pool:
            now = self._clock.monotonic()
            self._board.record(model_version, zone, successes=int(ok), failures=int(not ok), now=now)

    async def run(self) -> None:
        """Follow the router that decides, and report outcomes to every live one while there are any, as often as
        routers want to hear (0.5 s).

        So any two routers know the same outcomes of all processes, but for those of the last interval. What cannot be
        delivered is dropped: breakers look at a short window only.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                if self._mux.connected and not self._following:
                    self._follow()
                await asyncio.sleep(self._report_seconds)
                if self._replicas is not None:
                    self._replicas.follow(self._others(), group)
                if self._outcomes:
                    self._report()

    def _report(self) -> None:
        counts = [
            router_pb2.OutcomeCount(pool=pool, model_version=version, zone=zone, successes=good, failures=bad)
            for (pool, version, zone), (good, bad) in self._outcomes.items()
        ]
        self._outcomes.clear()
        report = router_pb2.ReportOutcomes(counts=counts)
        for link in (self._mux, *(self._replicas or ())):
            if link.connected:
                call = router_pb2.RouterCall(report=report)
                deadline = Deadline.after(self._decide_timeout, self._clock)
                tell(link, call, deadline=deadline, semantics=Semantics.ONCE, on_reply=self._on_noted)

    def _on_noted(self, reply: Any, error: WeirError | None) -> None:
        if error is None and (wanted := to_seconds(reply.noted.next)) > 0:
            self._report_seconds = wanted

    def _others(self) -> list[tuple[str, str]]:
        """Live routers but the one that decides, which hears over the deciding stream."""
        deciding = self._mux.instance if self._mux.connected else ""
        routers = self._table().snapshot.endpoints_of("router")
        return [(router.instance, router.address) for router in routers if router.instance != deciding]

    def resolve_here(self, asked: RouteRequest) -> Route:
        """The fallback's route, at once: for who must not get one that this process knows to be out of force.

        :raises WeirError: MODEL_NOT_FOUND.
        """
        route = self._table().resolve(asked)
        return _with_zones(route, self._board.arrange(route.model_version, route.zones, self._clock.monotonic()))

    def broken(self) -> frozenset[tuple[str, str]]:
        """(version, zone) of each breaker that the router told to be open, or half-open."""
        return self._told.open(self._clock.monotonic())

    def _resolve_as_told(self, asked: RouteRequest) -> Future[tuple[Route, bool]] | None:
        now = self._clock.monotonic()
        if not self._told.covers(self._table().snapshot.revision, now):
            return None
        future: Future[tuple[Route, bool]] = asyncio.get_running_loop().create_future()
        try:
            route = self._told.arranged(self._table().resolve(asked), now)
        except WeirError as error:
            future.set_exception(error)
            return future
        if route is None:
            return None
        future.set_result((route, False))
        return future

    def _follow(self) -> None:
        self._following = True
        deadline = Deadline.after(_FOLLOW_SECONDS, self._clock)
        call = router_pb2.RouterCall(follow=router_pb2.Follow())
        tell(self._mux, call, deadline=deadline, semantics=Semantics.WATCH, on_reply=self._on_state)

    def _on_state(self, reply: Any, error: WeirError | None) -> None:
        if error is None and reply.HasField("state"):
            self._told.take(reply.state, self._clock.monotonic())
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._follow)
        else:  # of another kind, or away: `run` tries again
            self._following = False

    def _own_pool(self, model_version: str) -> str | None:
        version = self._table().snapshot.model_versions.get(model_version)
        return version.pool if version else None


def _standing(told: router_pb2.ZoneBreaker) -> Standing:
    if told.HasField("closed_for"):
        return Standing(None, to_seconds(told.closed_for))
    return Standing(to_seconds(told.half_open_in))


def _with_zones(route: Route, zones: tuple[str, ...]) -> Route:
    return route if zones == route.zones else replace(route, zones=zones)


def _routed(reply: router_pb2.RouterReply) -> tuple[Route, bool]:
    if reply.HasField("rejected"):
        raise WeirError.from_rejection(reply.rejected)
    route = reply.route
    chosen = Route(
        model_version=route.model_version,
        arm=route.arm,
        pool=route.pool,
        tier=route.tier,
        zones=tuple(route.zones),
        revision=route.revision,
        rollout_id=route.rollout_id,
        step=route.step,
        mirror=_mirror(route.mirror) if route.HasField("mirror") else None,
    )
    return chosen, False


def _mirror(mirror: router_pb2.Mirror) -> Mirror:
    return Mirror(
        model_version=mirror.model_version,
        arm=mirror.arm,
        pool=mirror.pool,
        tier=mirror.tier,
        zones=tuple(mirror.zones),
    )
