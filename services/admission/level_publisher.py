"""Tells the registry how overloaded the pools are, for the edge to shed by.

What is told lies under a lease of a few seconds: a process that dies, or loses its way to etcd, sheds nobody for
longer than that. Nothing here is on the way of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.registry import Compare, Put, Store, keys
from libs.telemetry import get_logger
from services.admission import convert
from services.admission.metrics import SHED_TENANTS
from services.admission.policy.levels import TenantLevel
from services.admission.policy.pool import Pool

log = get_logger(__name__)
_PERIOD = 1.0  # seconds; the edge is told at most this often


class LevelPublisher:
    """Keeps the levels of this process's pools in the registry."""

    def __init__(self, store: Store, pools: Mapping[str, Pool], *, instance: str, ttl: float, clock: Clock) -> None:
        """`pools` is read anew each time; `ttl` in seconds, from the last sign of life to the end of the shedding."""
        self._store = store
        self._pools = pools
        self._instance = instance
        self._ttl = ttl
        self._clock = clock
        self._lease = 0
        self._told: dict[str, tuple[TenantLevel, ...]] = {}
        self._revisions: dict[str, int] = {}  # of our last write of each
        self._alive_at = 0.0  # when the lease was last prolonged

    async def run(self) -> None:
        """Publishes until cancelled; then what was told ends at once."""
        try:
            while True:
                await self.step()
                await asyncio.sleep(_PERIOD)
        finally:
            if self._lease:
                with suppress(WeirError):
                    await self._store.lease_revoke(self._lease)

    async def step(self) -> None:
        """One round: writes what has changed. Never raises for a store that is away."""
        wanted = await self._wanted()
        try:
            await self._tell(wanted)
        except WeirError as error:
            if error.reason is Reason.NOT_FOUND:  # the lease ran out, and what was told with it
                self._forget(wanted)
            elif error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                raise
            elif self._told and self._clock.monotonic() - self._alive_at > self._ttl:
                log.warning("levels_not_published")
                self._forget(wanted)

    async def _wanted(self) -> dict[str, tuple[TenantLevel, ...]]:
        """Of each pool, a piece at a time, so that thousands of tenants hold nobody up."""
        now = self._clock.monotonic()
        wanted = {}
        for name, pool in list(self._pools.items()):
            tenants: tuple[TenantLevel, ...] = ()
            for found in pool.levels.survey(now):
                await asyncio.sleep(0)
                tenants = found or ()
            SHED_TENANTS.labels(name).set(len(tenants))
            if tenants:
                wanted[name] = tenants
        return wanted

    async def _tell(self, wanted: dict[str, tuple[TenantLevel, ...]]) -> None:
        if not wanted and not self._told:
            return
        if self._lease:
            await self._store.lease_keepalive(self._lease)
        else:
            self._lease = await self._store.lease_grant(self._ttl)
        self._alive_at = self._clock.monotonic()
        changed = [name for name, tenants in wanted.items() if _shares(tenants) != _shares(self._told.get(name, ()))]
        ended = [name for name in self._told if name not in wanted]
        if not changed and not ended:
            return
        now, wall = self._clock.monotonic(), self._clock.time()
        if changed:
            written = await self._store.txn(
                puts=[
                    Put(
                        keys.key("levels", name),
                        keys.encode(convert.pool_level(self._pools[name], wanted[name], self._instance, now, wall)),
                        self._lease,
                    )
                    for name in changed
                ]
            )
            for name in changed:
                self._told[name] = wanted[name]
                self._revisions[name] = written.revision
                self._pools[name].levels.told(wanted[name])
        for name in ended:
            # Only what we wrote: the pool may have another owner by now, who told something else.
            mine = Compare(keys.key("levels", name), self._revisions[name])
            await self._store.txn(compares=[mine], deletes=[keys.key("levels", name)])
            del self._told[name]
            self._pools[name].levels.told(())

    def _forget(self, wanted: dict[str, tuple[TenantLevel, ...]]) -> None:
        """Nothing is told any more: what comes is all that there is."""
        self._lease = 0
        for name in self._told.keys() | wanted.keys():
            self._pools[name].levels.told(())
        self._told.clear()


def _shares(tenants: tuple[TenantLevel, ...]) -> dict[str, float]:
    """What the edge acts by; times to come back that moved a little are no reason to write."""
    return {each.tenant: each.shed for each in tenants}
