"""The servicer of weir.router.v1: frames in, frames out. Decisions are those of libs.routing and libs.breaker."""

from __future__ import annotations

import asyncio
from asyncio import Future
from typing import Any

import grpc
from weir.router.v1 import router_pb2 as pb
from weir.router.v1 import router_pb2_grpc

from libs.breaker import BreakerBoard
from libs.clock import Clock
from libs.deadlines import to_duration
from libs.errors import Reason, WeirError
from libs.mux import CallContext, Codec, MuxServer
from libs.registry import RegistrySnapshot
from libs.routing import Route, RouteRequest, RoutingTable
from services.router import metrics

_TOLD = "told"
SERVICE = pb.DESCRIPTOR.services_by_name["RouterService"].full_name


class RouterServicer(router_pb2_grpc.RouterServiceServicer):
    """Sessions of gateways. Every call but `Follow` is answered in the tick that reads it."""

    def __init__(
        self,
        board: BreakerBoard,
        *,
        instance: str,
        clock: Clock,
        max_in_flight: int,
        report_seconds: float,
        state_lasts: float = 0.0,
    ) -> None:
        """`report_seconds` is told to gateways, and `state_lasts`: for how long they may resolve by what was told."""
        self._board = board
        self._clock = clock
        self._next_report = to_duration(report_seconds)
        self._state_lasts = to_duration(state_lasts)
        self._slow_start = to_duration(board.options.slow_start)
        self._changes = 0
        self._followers: dict[Future[pb.RouterReply], CallContext] = {}
        self._table = RoutingTable.of(RegistrySnapshot())
        self._mux = MuxServer(
            codec=Codec.of(pb.SessionRequest, pb.SessionResponse),
            handler=self._handle,
            instance=instance,
            clock=clock,
            max_in_flight=max_in_flight,
        )

    def use(self, snapshot: RegistrySnapshot) -> None:
        """Decides on this snapshot from now on."""
        self._table = RoutingTable.of(snapshot, self._table)
        metrics.REVISION.set(snapshot.revision)
        self._changed()

    def tell(self) -> None:
        """Answers the gateways that follow, changed or not: called so often that what they were told stays in force."""
        followers, self._followers = self._followers, {}
        for future, context in followers.items():
            if not future.done():  # else its stream has ended
                context.session.state[_TOLD] = self._changes
                future.set_result(self._state())

    async def Session(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> None:  # noqa: N802
        """One gateway's multiplexed stream."""
        await self._mux.serve(request_iterator, context)

    async def drain(self) -> None:
        """Sends the gateways away and waits until they have gone."""
        asyncio.get_running_loop().call_soon(self.tell)  # behind their orders to go: they follow another router next
        await self._mux.drain()

    def _handle(self, call: Any, context: CallContext) -> pb.RouterReply | Future[pb.RouterReply]:
        op = call.WhichOneof("op")
        if op == "resolve":
            return self._resolve(call.resolve)
        if op == "report":
            return self._learn(call.report)
        if op == "follow":
            return self._follow(context)
        raise WeirError(Reason.INVALID_REQUEST, "The call asks for nothing.", limit="op")

    def _resolve(self, asked: pb.Resolve) -> pb.RouterReply:
        try:
            route = self._route(asked)
        except WeirError as error:
            metrics.REFUSED[error.reason].inc()
            if error.reason in (Reason.MODEL_NOT_FOUND, Reason.REGION_NOT_ALLOWED):
                return pb.RouterReply(rejected=error.to_rejection())
            raise
        metrics.RESOLVED.inc()
        reply = pb.RouterReply()
        result = reply.route
        result.model_version = route.model_version
        result.arm = route.arm
        result.pool = route.pool
        result.tier = route.tier
        result.zones.extend(route.zones)
        result.revision = route.revision
        if route.rollout_id:
            result.rollout_id = route.rollout_id
            result.step = route.step
            if route.mirror is not None:
                mirror = route.mirror
                metrics.MIRRORED.inc()
                result.mirror.CopyFrom(
                    pb.Mirror(
                        model_version=mirror.model_version,
                        arm=mirror.arm,
                        pool=mirror.pool,
                        tier=mirror.tier,
                        zones=mirror.zones,
                    )
                )
        return reply

    def _route(self, asked: pb.Resolve) -> Route:
        table = self._table
        if not table.snapshot.revision:
            # Nothing was ever read: no knowledge is not the knowledge that there is no such model.
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "The registry was not read yet.", retry_after=1.0)
        if not asked.tenant:
            raise WeirError(Reason.INVALID_REQUEST, "tenant is missing.", limit="tenant")
        now = self._clock.monotonic()
        board = self._board
        return table.resolve(
            RouteRequest(
                asked.tenant,
                asked.model,
                asked.sticky_key,
                asked.zone,
                asked.user,
                asked.session,
                asked.request_id,
            ),
            lambda version, zones: board.arrange(version, zones, now),
        )

    def _follow(self, context: CallContext) -> pb.RouterReply | Future[pb.RouterReply]:
        told = context.session.state
        if told.get(_TOLD) != self._changes:
            told[_TOLD] = self._changes
            return self._state()
        future: Future[pb.RouterReply] = asyncio.get_running_loop().create_future()
        self._followers[future] = context
        return future

    def _changed(self) -> None:
        self._changes += 1
        self.tell()

    def _state(self) -> pb.RouterReply:
        reply = pb.RouterReply()
        state = reply.state
        state.revision = self._table.snapshot.revision
        state.lasts.CopyFrom(self._state_lasts if state.revision else to_duration(0.0))
        state.slow_start.CopyFrom(self._slow_start)
        for (version, zone), standing in self._board.standings(self._clock.monotonic()).items():
            told = state.breakers.add(model_version=version, zone=zone)
            if standing.half_open_in is None:
                told.closed_for.CopyFrom(to_duration(standing.closed_for))
            else:
                told.half_open_in.CopyFrom(to_duration(max(0.0, standing.half_open_in)))
        return reply

    def _learn(self, report: pb.ReportOutcomes) -> pb.RouterReply:
        now = self._clock.monotonic()
        versions = self._table.snapshot.model_versions
        changed = False
        for count in report.counts:
            known = versions.get(count.model_version)
            if known is None or known.pool != count.pool:
                # Of another pool than the version's own (a fallback on CPUs): it says nothing about the zones that
                # routes choose among. Unknown versions have no routes.
                metrics.IGNORED.inc(count.successes + count.failures)
                continue
            name, zone = count.model_version, count.zone
            changed |= self._board.record(name, zone, successes=count.successes, failures=count.failures, now=now)
            metrics.OUTCOMES.labels(name, zone, "success").inc(count.successes)
            metrics.OUTCOMES.labels(name, zone, "failure").inc(count.failures)
        if changed:
            self._changed()
        reply = pb.RouterReply()
        reply.noted.next.CopyFrom(self._next_report)
        return reply
