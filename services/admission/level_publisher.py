"""Tells the registry how overloaded the pools are, for the edge to shed by.

What is told lies under a lease of a few seconds: a process that dies, or loses its way to etcd, sheds nobody for
longer than that. Nothing here is on the way of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.registry import Compare, KeyValue, Put, Store, keys
from libs.resources.codec import read
from libs.resources.kinds import BY_PLURAL
from libs.telemetry import get_logger
from services.admission import convert
from services.admission.metrics import SHED_TENANTS
from services.admission.policy.edge_shedding import TenantLevel
from services.admission.policy.pool import Pool

log = get_logger(__name__)
_PERIOD = 1.0  # seconds; the edge is told at most this often


class LevelPublisher:
    """Keeps the levels of this process's pools in the registry."""

    def __init__(
        self,
        store: Store,
        pools: Mapping[str, Pool],
        *,
        epoch: Callable[[str], int],
        instance: str,
        ttl: float,
        clock: Clock,
    ) -> None:
        """`pools`, and each one's `epoch`, are read anew each time; `ttl` in seconds, from the last sign of life to the
        end of the shedding."""
        self._store = store
        self._pools = pools
        self._epoch = epoch
        self._instance = instance
        self._ttl = ttl
        self._clock = clock
        self._lease = 0
        self._told: dict[str, tuple[TenantLevel, ...]] = {}
        self._seen: dict[str, int] = {}  # revision of what may be written over; 0: nothing
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
            if pool.fleet.staffed:  # without a worker it is no overload, and callers are to hear so
                for found in pool.edge_shedding.survey(now):
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
        for name in changed:
            if await self._write(name, wanted[name]):
                self._told[name] = wanted[name]
                self._counts(name, wanted[name])
            elif self._told.pop(name, None):
                self._counts(name, ())
        for name in ended:
            # Only what we wrote: the pool may have another owner by now, who told something else.
            mine = Compare(keys.key("levels", name), self._seen[name])
            await self._store.txn(compares=[mine], deletes=[keys.key("levels", name)])
            del self._told[name]
            self._counts(name, ())

    async def _write(self, name: str, tenants: tuple[TenantLevel, ...]) -> bool:
        """Writes a pool's level over what was last seen there. False when there is one of a newer owner."""
        key = keys.key("levels", name)
        for _ in range(2):
            pool, epoch = self._pools.get(name), self._epoch(name)
            if pool is None:
                break
            now, wall = self._clock.monotonic(), self._clock.time()
            level = convert.pool_level(pool, tenants, self._instance, epoch, now, wall)
            seen = Compare(key, self._seen.get(name, 0))
            written = await self._store.txn(compares=[seen], puts=[Put(key, keys.encode(level), self._lease)])
            if written.succeeded:
                self._seen[name] = written.revision
                return True
            found = await self._store.get(key)
            if found is not None and _epoch_of(found) > epoch:
                log.info("level_of_a_newer_owner", pool=name)
                break
            self._seen[name] = found.mod_revision if found is not None else 0
        return False

    def _counts(self, name: str, tenants: tuple[TenantLevel, ...]) -> None:
        """The edge sheds by this from now on."""
        if (pool := self._pools.get(name)) is not None:
            pool.edge_shedding.told(tenants)

    def _forget(self, wanted: dict[str, tuple[TenantLevel, ...]]) -> None:
        """Nothing is told any more: what comes is all that there is."""
        self._lease = 0
        for name in self._told.keys() | wanted.keys():
            self._counts(name, ())
        self._told.clear()


def _epoch_of(found: KeyValue) -> int:
    """The term of whoever wrote a level; 0 when it cannot be read, or was written before there were any."""
    kind = BY_PLURAL["levels"]
    resource = read(kind, found.key.removeprefix(kind.prefix), found.value, found.mod_revision)
    return resource.level.epoch if resource is not None else 0


def _shares(tenants: tuple[TenantLevel, ...]) -> dict[str, float]:
    """What the edge acts by; times to come back that moved a little are no reason to write."""
    return {each.tenant: each.shed for each in tenants}
