"""The shell around `policy/ownership.py`: who asks, what this process sees, and what follows for its pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.registry import RegistryView
from libs.routing import WORKER_SERVICE
from libs.sharding import Members
from services.admission.coordinator import Coordinator
from services.admission.policy.ownership import Elsewhere, Ownership, Owns, World


class Owners:
    """Decides for which pools this process decides. Nothing here waits."""

    def __init__(
        self,
        ownership: Ownership,
        coordinator: Coordinator,
        *,
        view: RegistryView,
        members: Callable[[], Members],
        clock: Clock,
    ) -> None:
        """`view` and `members` tell of the other admission processes, and whether a pool has workers at all."""
        self._ownership = ownership
        self._coordinator = coordinator
        self._view = view
        self._members = members
        self._clock = clock
        self._on_lost: list[Callable[[str], None]] = []
        coordinator.on_told(self._told)

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Calls back when this process does not own a pool any more, before those who wait there are told."""
        self._on_lost.append(callback)

    def require(self, pool: str, *, beyond: int = 0) -> None:
        """A gateway asks this process to decide for a pool: it does, or begins to. `beyond` is a term whose owner could
        not serve the gateway.

        :raises WeirError: NOT_OWNER; its limit is the owner's term in hexadecimal, "@", and its address if known.
        """
        if self._coordinator.epoch(pool):
            return
        found = self._ownership.ask(pool, self._world(pool), self._clock.monotonic(), beyond=beyond)
        if isinstance(found, Elsewhere):
            self._give_up(pool)
            endpoint = self._members().current.get(found.owner)
            limit = f"{found.epoch:x}@{endpoint.address if endpoint is not None else ''}"
            raise WeirError(Reason.NOT_OWNER, "Another process owns this pool.", limit=limit)
        self._claim(pool)

    def met(self, pool: str, epoch: int, owner: str) -> None:
        """A worker of the pool comes, and says which term is the newest that it has heard of."""
        self._told(pool, epoch, owner)
        world = replace(self._world(pool), workers=True)
        if pool and self._ownership.ask(pool, world, self._clock.monotonic()) is Owns.CLAIM:
            self._claim_at_home(pool, world)

    def settled(self) -> None:
        """The set of admission processes has changed: each takes the pools that are at home on it."""
        for pool in self._coordinator.reached():
            if not self._coordinator.epoch(pool):
                self._claim_at_home(pool, self._world(pool))

    def tick(self) -> None:
        """Gives up what only others can serve; call it often."""
        now = self._clock.monotonic()
        for pool in self._ownership.mine:
            if self._ownership.useless(pool, self._world(pool), now):
                self._give_up(pool)

    def _told(self, pool: str, epoch: int, owner: str) -> None:
        if self._ownership.told(pool, epoch, owner, self._clock.monotonic()):
            self._give_up(pool)

    def _claim_at_home(self, pool: str, world: World) -> None:
        if self._ownership.at_home(pool, world):
            self._claim(pool)

    def _claim(self, pool: str) -> None:
        self._coordinator.won(pool, self._ownership.claim(pool, self._clock.monotonic()))

    def _give_up(self, pool: str) -> None:
        for callback in self._on_lost:
            callback(pool)
        self._coordinator.lost(pool)

    def _world(self, pool: str) -> World:
        snapshot, members = self._view.snapshot, self._members().current.keys()
        return World(
            others=members - {self._ownership.instance} if snapshot.revision else None,
            registered=self._ownership.instance in members,
            workers=pool in self._coordinator.reached(),
            listed=any(
                service == WORKER_SERVICE and endpoint.pool == pool
                for (service, _), endpoint in snapshot.endpoints.items()
            ),
        )
