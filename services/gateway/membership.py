"""Which requests are on which arm of a rollout: once an arm is taken out, whoever is on it is found at once.

The baseline's requests are not kept: they are where everybody can be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Self, TypeVar

from weir.registry.v1 import registry_pb2

from libs.catalog import Catalog
from libs.errors import WeirError
from libs.registry import RegistrySnapshot
from libs.rollouts import BASELINE, arms_of, capacity_share, exposed, in_force, phase_of
from libs.routes import RouterClient
from libs.routing import Route
from services.gateway.request import Candidate, Request

_MOST_VERDICTS = 1024
_Place = tuple[str, str, str]  # alias, rollout, arm
_T = TypeVar("_T")


class TakenOut(Exception):
    """The arm that a request is on, or was to be on, is out of force; or its wait for a worker was broken off."""


class Membership:
    """One per process."""

    def __init__(self, catalog: Catalog, router: RouterClient) -> None:
        self._catalog = catalog
        self._router = router
        self._members: dict[_Place, dict[Member, None]] = {}
        self._migrate: dict[_Place, bool] = {}  # what becomes of running streams, while there are members
        self._verdicts: dict[_Place, bool] = {}  # of the present snapshot: whether an arm is out of force

    def __len__(self) -> int:
        return sum(map(len, self._members.values()))

    def share(self, alias: str, route: Route) -> float:
        """Most of its pool's KV blocks that the route's arm may hold; 0: all, as for whatever is no arm."""
        if not _on_arm(route):
            return 0.0
        known = self._catalog.snapshot.rollouts.get(alias)
        return capacity_share(known if known is not None and known.id == route.rollout_id else None)

    def changed(self) -> None:
        """There is a new snapshot: the requests whose arm it has taken out are told, with whether running streams are
        to be moved, and are members no more. Costs what there are arms with requests."""
        snapshot = self._catalog.snapshot
        self._verdicts.clear()
        for place in list(self._members):
            known = snapshot.rollouts.get(place[0])
            if known is not None and known.id == place[1]:
                self._migrate[place] = known.on_rollback == registry_pb2.IN_FLIGHT_MIGRATE
                if phase_of(known) == registry_pb2.ROLLOUT_PHASE_PROMOTED:  # the arm is what the alias gives
                    self._drop(place, self._members[place])
                    continue
            if out_of_force(snapshot, *place):
                migrate = self._migrate.get(place, False)
                # Those whose router has seen more than this snapshot stay: it says nothing about their arm yet.
                found = [one for one in self._members[place] if one.revision <= snapshot.revision]
                self._drop(place, found)
                for member in found:
                    member.taken_out(migrate)

    def elsewhere(self, request: Request, candidate: Candidate, now: Route, *, absent: bool = False) -> Route | None:
        """Where a stream can go on whose arm, on which it is `now`, is out of force: what its caller gets, if that
        reads the same tokens, has room for the rest and the same safety policies, which its filters keep. None while
        the arm is in force and its version is not `absent` from the worker that it was sent to."""
        if not absent and not (_on_arm(now) and self._is_out(candidate.model, now)):
            return None
        try:
            found = self._router.resolve_here(request.question(self._catalog, candidate.model))
            version = self._catalog.version(found.model_version)
        except WeirError:
            return None
        if found.model_version == now.model_version:
            return None  # it is what the alias gives now
        known = candidate.version
        same = bool(known.tokenizer_sha256) and known.tokenizer_sha256 == version.tokenizer_sha256
        same = same and set(known.safety_policies) == set(version.safety_policies)
        fits = len(candidate.prompt) + candidate.bound.max_tokens <= version.context_length
        return found if same and fits else None

    def enter(self, member: Member, alias: str, route: Route) -> None:
        """The member is about to wait for this route, and is nowhere else any more.

        :raises TakenOut: its arm is out of force.
        """
        self.leave(member)
        member.revision = route.revision
        if not _on_arm(route):
            return
        if self._is_out(alias, route):
            raise TakenOut
        place = member.place = (alias, route.rollout_id, route.arm)
        self._members.setdefault(place, {})[member] = None
        known = self._catalog.snapshot.rollouts.get(alias)
        if known is not None and known.id == route.rollout_id:
            self._migrate[place] = known.on_rollback == registry_pb2.IN_FLIGHT_MIGRATE

    def leave(self, member: Member) -> None:
        """The member is over, or goes elsewhere."""
        place, member.place = member.place, None
        members = self._members.get(place) if place is not None else None
        if members is not None and place is not None:
            members.pop(member, None)
            self._forget(place)

    def _is_out(self, alias: str, route: Route) -> bool:
        snapshot = self._catalog.snapshot
        if route.revision > snapshot.revision:
            return False  # a router that has seen more knows better; the gateway's next snapshot settles it
        place = (alias, route.rollout_id, route.arm)
        verdict = self._verdicts.get(place)
        if verdict is None:
            verdict = out_of_force(snapshot, *place)
            if len(self._verdicts) < _MOST_VERDICTS:
                self._verdicts[place] = verdict
        return verdict

    def _drop(self, place: _Place, gone: Iterable[Member]) -> None:
        members = self._members[place]
        for member in list(gone):
            del members[member]
            member.place = None
        self._forget(place)

    def _forget(self, place: _Place) -> None:
        if not self._members[place]:
            del self._members[place]
            self._migrate.pop(place, None)


class Member:
    """One request among those on arms, and its waits for workers, which others may break off."""

    __slots__ = ("_broken_off", "_membership", "_task", "on_taken_out", "place", "revision")

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._task: asyncio.Task[object] | None = None  # waits for a worker
        self._broken_off = False
        self.place: _Place | None = None
        self.revision = 0
        """Of the registry, that its route was made of."""
        self.on_taken_out: Callable[[bool], None] | None = None
        """Told with whether it is to be moved; without it a wait is broken off."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._membership.leave(self)

    @property
    def waits(self) -> bool:
        """It waits for a worker."""
        return self._task is not None

    def taken_out(self, migrate: bool) -> None:
        """Its arm is out of force."""
        if self.on_taken_out is not None:
            self.on_taken_out(migrate)
        else:
            self.break_off()

    def break_off(self) -> None:
        """End its wait; nothing where it does not wait."""
        if self._task is not None and not self._broken_off:
            self._broken_off = True
            self._task.cancel()

    async def wait(self, what: Awaitable[_T]) -> _T:
        """Wait for a worker, as a part of the present task.

        :raises TakenOut: the wait was broken off.
        """
        task = self._task = asyncio.current_task()
        try:
            return await what
        except asyncio.CancelledError:
            if task is None or not self._broken_off or task.uncancel():
                raise  # the caller has left, or the gateway shuts down
            raise TakenOut from None
        finally:
            self._task, self._broken_off = None, False


def out_of_force(snapshot: RegistrySnapshot, alias: str, rollout_id: str, arm: str) -> bool:
    """No caller may meet this arm any more. A promoted rollout takes nothing out: its arm is what the alias gives."""
    known = snapshot.rollouts.get(alias)
    if known is None or known.id != rollout_id:
        return True
    if phase_of(known) == registry_pb2.ROLLOUT_PHASE_PROMOTED:
        return False
    rollout = in_force(snapshot, alias)
    if rollout is None or not exposed(rollout):
        return True
    return not any(one.name == arm and one.weight > 0 for one in arms_of(rollout))


def _on_arm(route: Route) -> bool:
    return bool(route.rollout_id) and route.arm != BASELINE
