"""The servicer of weir.rollout.v1: takes evidence in, tells how things stand. Decisions are the controller's."""

# ruff: noqa: N802 - methods are named as in the proto

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Set
from contextlib import contextmanager

import grpc
from weir.rollout.v1 import rollout_pb2 as pb
from weir.rollout.v1 import rollout_pb2_grpc

from libs.authority.calls import callers_of
from libs.deadlines import to_duration, to_seconds
from libs.errors import Reason, WeirError
from libs.registry import RegistryView
from libs.registry.roles import require_role
from libs.rpc import get_metadata, peer_service, require_own
from services.rollout.budgets import exhausted
from services.rollout.config import Settings
from services.rollout.knowledge import Knowledge
from services.rollout.outcomes import Rollout
from services.rollout.peers import RELAYED
from services.rollout.ports import ReplicaPort
from services.rollout.scores import Score, fault_of
from services.rollout.status import StatusReader

SERVICE = pb.DESCRIPTOR.services_by_name["RolloutService"].full_name
_REPLICAS = frozenset({"rollout"})
_LEAST_INTERVAL = 0.1
_INTERVAL = 1.0
_MAX_SCORES = 10_000
_MAX_NAME = 200


class Changes:
    """Wakes watchers when something of their alias changed."""

    def __init__(self) -> None:
        self._watchers: dict[str, set[asyncio.Event]] = {}

    def tell(self, aliases: set[str]) -> None:
        """Something changed of these."""
        for alias in aliases:
            for event in self._watchers.get(alias, ()):
                event.set()

    def tell_all(self) -> None:
        """Anything may have changed."""
        self.tell(set(self._watchers))

    @contextmanager
    def watching(self, alias: str) -> Iterator[asyncio.Event]:
        """An event that is set with every change, meanwhile."""
        event = asyncio.Event()
        self._watchers.setdefault(alias, set()).add(event)
        try:
            yield event
        finally:
            self._watchers[alias].discard(event)
            if not self._watchers[alias]:
                del self._watchers[alias]


class RolloutServicer(rollout_pb2_grpc.RolloutServiceServicer):
    """`weir.rollout.v1.RolloutService`."""

    def __init__(
        self,
        *,
        settings: Settings,
        roles: RegistryView,
        knowledge: Knowledge,
        status: StatusReader,
        changes: Changes,
        replicas: ReplicaPort,
        leader: Callable[[], str],
    ) -> None:
        """:param roles: knows who operates.

        :param leader: the instance that decides, as last seen.
        """
        self._settings = settings
        self._roles = roles
        self._knowledge = knowledge
        self._status = status
        self._changes = changes
        self._replicas = replicas
        self._leader = leader
        self._next = to_duration(settings.report_seconds)
        self._draining = asyncio.Event()

    async def ReportOutcomes(
        self, request_iterator: AsyncIterator[pb.ReportOutcomesRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ReportOutcomesResponse]:
        """One gateway's stream.

        :raises WeirError: PERMISSION_DENIED for a report of another gateway's; INVALID_REQUEST for a frame
            without a source or incarnation, or one that changes them; DRAINING when this replica goes.
        """
        first = await self._frame(context)
        if first is None:
            return
        if not first.source or not first.incarnation or max(len(first.source), len(first.incarnation)) > _MAX_NAME:
            raise WeirError(Reason.INVALID_REQUEST, "a report needs its source and incarnation", limit="source")
        require_own(context, instance=first.source)
        with self._knowledge.listening_to(first.source):
            frame: pb.ReportOutcomesRequest | None = first
            while frame is not None:
                if (frame.source, frame.incarnation) != (first.source, first.incarnation):
                    raise WeirError(Reason.INVALID_REQUEST, "a stream is of one incarnation", limit="incarnation")
                self._knowledge.take_report(frame)
                yield pb.ReportOutcomesResponse(next=self._next)
                frame = await self._frame(context)

    async def ReportScores(
        self, request: pb.ReportScoresRequest, context: grpc.aio.ServicerContext
    ) -> pb.ReportScoresResponse:
        """Takes scores here and hands them to the other replicas.

        :raises WeirError: PERMISSION_DENIED; INVALID_REQUEST for one that cannot be taken (none is, then);
            DEPENDENCY_UNAVAILABLE when the leader did not get them.
        """
        relayed = bool(get_metadata(context, RELAYED)) and self._peer_is_replica(context)
        if not relayed:
            self._require("ReportScores", context, but=_REPLICAS)
        if len(request.scores) > _MAX_SCORES:
            raise WeirError(Reason.INVALID_REQUEST, f"at most {_MAX_SCORES} scores at once", limit="scores")
        scores = [
            Score(each.id, Rollout(each.alias, each.rollout_id), each.arm, each.metric, each.value)
            for each in request.scores
        ]
        for index, score in enumerate(scores):
            if fault := fault_of(score):
                raise WeirError(Reason.INVALID_REQUEST, fault, limit=f"scores[{index}]")
        taken, unknown = self._knowledge.take_scores(scores)
        if not relayed:
            await self._replicas.relay(request, leader=self._leader())
        return pb.ReportScoresResponse(accepted=taken.accepted, repeated_scores=taken.repeated, unknown=unknown)

    async def GetRollout(
        self, request: pb.GetRolloutRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetRolloutResponse:
        """See the proto.

        :raises WeirError: PERMISSION_DENIED; NOT_FOUND.
        """
        self._require("GetRollout", context)
        return pb.GetRolloutResponse(status=self._status.status(request.alias))

    async def WatchRollout(
        self, request: pb.WatchRolloutRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchRolloutResponse]:
        """See the proto; it goes on after the rollout's end, with the next one of the alias.

        :raises WeirError: as `GetRollout`; DRAINING when this replica goes.
        """
        self._require("WatchRollout", context)
        interval = max(_LEAST_INTERVAL, to_seconds(request.interval)) if request.HasField("interval") else _INTERVAL
        with self._changes.watching(request.alias) as changed:
            while True:
                # Again, since a role may be taken away meanwhile.
                self._require("WatchRollout", context)
                changed.clear()
                yield pb.WatchRolloutResponse(status=self._status.status(request.alias))
                if not await self._unless_draining(asyncio.sleep(interval, True)):
                    raise _draining()
                if not await self._unless_draining(changed.wait()):
                    raise _draining()

    async def GetSloStatus(
        self, request: pb.GetSloStatusRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetSloStatusResponse:
        """See the proto.

        :raises WeirError: PERMISSION_DENIED.
        """
        self._require("GetSloStatus", context)
        every = self._knowledge.budget_status(fresh=True)
        return pb.GetSloStatusResponse(
            budgets=[
                budget
                for (route, tier), budget in sorted(every.items())
                if request.route in ("", route) and request.tier in ("", tier)
            ],
            frozen=bool(exhausted(every.values())),
        )

    def _require(self, call: str, context: grpc.aio.ServicerContext, *, but: Set[str] = frozenset()) -> None:
        """Lets the services pass that the table of calls names (libs.authority.calls), `but` some, and whoever has a
        role.

        :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED.
        """
        if peer_service(context) not in callers_of(f"/{SERVICE}/{call}") - but:
            require_role(f"rollout.{call}", context, self._roles.snapshot, tls=self._settings.tls is not None)

    def drain(self) -> None:
        """Sends gateways and watchers away."""
        self._draining.set()

    async def _frame(self, context: grpc.aio.ServicerContext) -> pb.ReportOutcomesRequest | None:
        """The next frame; None at the stream's end."""
        frame = await self._unless_draining(context.read())
        if frame is None:
            raise _draining()
        return None if frame is grpc.aio.EOF else frame

    async def _unless_draining(self, awaited):  # type: ignore[no-untyped-def]
        """What is awaited, or None when this replica drains first."""
        wanted = asyncio.ensure_future(awaited)
        drained = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait((wanted, drained), return_when=asyncio.FIRST_COMPLETED)
            return wanted.result() if wanted.done() else None
        finally:
            for task in (wanted, drained):
                task.cancel()

    def _peer_is_replica(self, context: grpc.aio.ServicerContext) -> bool:
        return self._settings.tls is None or peer_service(context) in _REPLICAS


def _draining() -> WeirError:
    return WeirError(Reason.DRAINING, "this replica is going; the others go on", retry_after=0.5)
