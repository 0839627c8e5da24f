"""Answers about a tenant's status, asked for once by however many want to know."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from weir.registry.v1 import registry_pb2 as pb

from libs.catalog import Catalog
from libs.clock import Clock
from libs.errors import WeirError
from libs.telemetry import get_logger
from services.gateway.openai.status import Facts, RouteTier, status_body

log = get_logger(__name__)
FRESH = 5.0
"""Seconds for which an answer is given again. With it the most that can be asked of others: one question about
objectives per gateway, and one about spend per tenant and gateway, in so long, however often tenants ask."""
_MOST_TENANTS = 1_024
_K = TypeVar("_K")
_V = TypeVar("_V")


class Desk:
    """Makes the answers."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        budgets: Callable[[], Awaitable[Mapping[RouteTier, pb.ErrorBudget]]],
        spend: Callable[[str], Awaitable[pb.Spend]],
        broken: Callable[[], frozenset[tuple[str, str]]],
        clock: Clock,
    ) -> None:
        """`budgets` asks how objectives are met, `spend` what a tenant has spent; both raise WeirError where nobody
        answers, and must be bounded in time."""
        self._catalog, self._clock, self._broken = catalog, clock, broken
        self._budgets, self._spend = budgets, spend
        self._burned: _Kept[None, Mapping[RouteTier, pb.ErrorBudget] | None] = _Kept(1, clock)
        self._bodies: _Kept[str, bytes] = _Kept(_MOST_TENANTS, clock)

    async def body(self, tenant: str) -> bytes:
        """The status of this tenant's models and budgets; what cannot be had is named as unknown."""
        return await self._bodies.of(tenant, lambda: self._made(tenant))

    async def _made(self, tenant: str) -> bytes:
        snapshot = self._catalog.snapshot
        has_budget = tenant in snapshot.budgets
        burned = await self._burned.of(None, lambda: _or_none(self._budgets(), "objectives"))
        spent = await _or_none(self._spend(tenant), "spend") if has_budget else pb.Spend()
        return status_body(
            Facts(
                tenant=tenant,
                now=self._clock.time(),
                models=self._catalog.models(tenant),
                snapshot=snapshot,
                burned=burned,
                spent=spent,
                broken=self._broken(),
            )
        )


class _Kept(Generic[_K, _V]):
    """Values by key for `FRESH` seconds. Who asks while one is being made waits for the same one; a caller that leaves
    does not take it from the others."""

    def __init__(self, most: int, clock: Clock) -> None:
        self._most, self._clock = most, clock
        self._known: OrderedDict[_K, tuple[float, asyncio.Task[_V]]] = OrderedDict()

    async def of(self, key: _K, make: Callable[[], Awaitable[_V]]) -> _V:
        now = self._clock.monotonic()
        known = self._known.get(key)
        if known is None or known[0] <= now or (known[1].done() and known[1].exception() is not None):
            known = self._known[key] = (now + FRESH, asyncio.ensure_future(_task(make)))
            self._known.move_to_end(key)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return await asyncio.shield(known[1])


async def _task(make: Callable[[], Awaitable[_V]]) -> _V:
    return await make()


async def _or_none(asked: Awaitable[_V], what: str) -> _V | None:
    try:
        return await asked
    except WeirError as error:
        log.warning("status_unknown", what=what, reason=error.reason.name)
        return None
