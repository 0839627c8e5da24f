"""Routing over the multiplexed stream. Fallback: the same pure function on the gateway's own snapshot."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future
from collections import defaultdict

from weir.router.v1 import router_pb2

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import WeirError
from libs.mux import MuxClient, Semantics
from libs.routing import Route
from services.gateway.catalog import Catalog
from services.gateway.clients.decision import start_decision

_REPORT_SECONDS = 0.5


class RouterClient:
    """Implements `RouterPort`."""

    def __init__(self, mux: MuxClient, catalog: Catalog, *, zone: str, clock: Clock, decide_timeout: float) -> None:
        self._mux = mux
        self._catalog = catalog
        self._zone = zone
        self._clock = clock
        self._decide_timeout = decide_timeout
        self._outcomes: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])

    def start_resolve(
        self, *, tenant: str, model: str, sticky_key: str, deadline: Deadline, traceparent: str
    ) -> Future[tuple[Route, bool]]:
        """See `RouterPort`."""
        resolve = router_pb2.Resolve(tenant=tenant, model=model, sticky_key=sticky_key, zone=self._zone)
        return start_decision(
            self._mux,
            router_pb2.RouterCall(resolve=resolve),
            deadline=Deadline.after(self._decide_timeout, self._clock).earlier(deadline),
            traceparent=traceparent,
            read=_routed,
            fallback=lambda: (self._catalog.resolve(tenant=tenant, model=model, sticky_key=sticky_key), True),
        )

    def outcome(self, *, pool: str, model_version: str, zone: str, ok: bool) -> None:
        """See `RouterPort`; sent in batches by `run`."""
        self._outcomes[pool, model_version, zone][0 if ok else 1] += 1

    async def run(self) -> None:
        """Report outcomes while there are any, twice a second. Counts that cannot be delivered are dropped: breakers
        look at a short window only."""
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            if not self._outcomes:
                continue
            counts = [
                router_pb2.OutcomeCount(pool=pool, model_version=version, zone=zone, successes=good, failures=bad)
                for (pool, version, zone), (good, bad) in self._outcomes.items()
            ]
            self._outcomes.clear()
            with contextlib.suppress(WeirError):
                await self._mux.call(
                    router_pb2.RouterCall(report=router_pb2.ReportOutcomes(counts=counts)),
                    deadline=Deadline.after(self._decide_timeout, self._clock),
                    semantics=Semantics.ONCE,
                )


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
    )
    return chosen, False
