"""Requests on the arms of rollouts, by arm: once an arm is taken out, whoever is on it is found at once.

The baseline's requests are not kept: they are where everybody can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from weir.registry.v1 import registry_pb2

from libs.errors import WeirError
from libs.registry import RegistrySnapshot
from libs.rollouts import BASELINE, arms_of, exposed, in_force, phase_of
from libs.routing import Route
from services.gateway.catalog import Catalog
from services.gateway.ports import RouterPort

if TYPE_CHECKING:
    from services.gateway.request import Candidate, Request

VERSION_CHANGED = "version_changed"
"""The degradation of an answer that another version finished."""
_SHARE = 0.5
"""Of the pool's KV blocks, for arms of rollouts that do not say."""
_MOST_VERDICTS = 1024
_Place = tuple[str, str, str]  # alias, rollout, arm


class TakenOut(Exception):
    """The arm of a candidate is out of force: the request is routed anew."""


class Arms:
    """One per process."""

    def __init__(self, catalog: Catalog, router: RouterPort) -> None:
        self._catalog = catalog
        self._router = router
        self._members: dict[_Place, dict[Request, None]] = {}
        self._migrate: dict[_Place, bool] = {}  # what becomes of running streams, while there are members
        self._judged = catalog.snapshot
        self._verdicts: dict[_Place, bool] = {}  # of that snapshot: whether an arm is out of force

    def __len__(self) -> int:
        return sum(map(len, self._members.values()))

    def share(self, candidate: Candidate) -> float:
        """Most of its pool's KV blocks that the candidate's arm may hold; 0: all, as for whatever is no arm."""
        route = candidate.route
        if not _on_arm(route):
            return 0.0
        known = self._catalog.snapshot.rollouts.get(candidate.model)
        return (known.capacity_share if known is not None and known.id == route.rollout_id else 0.0) or _SHARE

    def enter(self, request: Request, candidate: Candidate) -> None:
        """The request is about to wait for the candidate.

        :raises TakenOut: its arm is out of force.
        """
        self.leave(request)
        self._enter(request, candidate.model, candidate.route)

    def leave(self, request: Request) -> None:
        """The request is over, or goes elsewhere."""
        place, request.place = request.place, None
        if place is None:
            return
        members = self._members.get(place)
        if members is not None:
            members.pop(request, None)
            if not members:
                del self._members[place]
                self._migrate.pop(place, None)

    def taken_out(self) -> Iterator[tuple[Request, bool]]:
        """Requests whose arm the present snapshot has taken out, and whether running streams are to be moved; they are
        members no more. Called once per snapshot; costs what there are arms with requests."""
        snapshot = self._catalog.snapshot
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
                found = [
                    request
                    for request in self._members[place]
                    if request.serving is None or request.serving.revision <= snapshot.revision
                ]
                self._drop(place, found)
                for request in found:
                    yield request, migrate

    def elsewhere(self, request: Request, *, absent: bool = False) -> tuple[Route, registry_pb2.ModelVersion] | None:
        """Where a stream can go on whose arm is out of force: what its caller gets now, if that reads the same tokens,
        has room for the rest and the same safety policies, which its filters keep. None while the arm is in force and
        its version is not `absent` from the worker that it was sent to."""
        candidate, route = request.candidate, request.serving
        if candidate is None or route is None:
            return None
        if not absent and not (_on_arm(route) and self._is_out(candidate.model, route)):
            return None
        try:
            found = self._router.resolve_here(request.question(self._catalog, candidate.model))
            version = self._catalog.version(found.model_version)
        except WeirError:
            return None
        if found.model_version == route.model_version:
            return None  # it is what the alias gives now
        known = candidate.version
        same = bool(known.tokenizer_sha256) and known.tokenizer_sha256 == version.tokenizer_sha256
        same = same and set(known.safety_policies) == set(version.safety_policies)
        fits = len(candidate.prompt) + candidate.bound.max_tokens <= version.context_length
        return (found, version) if same and fits else None

    def change(self, request: Request, route: Route) -> float:
        """The request goes on by another route; returns what `share` says of it."""
        self.leave(request)
        request.serving = route
        candidate = request.candidate
        if candidate is None or not _on_arm(route):
            return 0.0
        self._enter(request, candidate.model, route)
        known = self._catalog.snapshot.rollouts.get(candidate.model)
        return (known.capacity_share if known is not None else 0.0) or _SHARE

    def _enter(self, request: Request, alias: str, route: Route) -> None:
        request.serving = route
        if not _on_arm(route):
            return
        if self._is_out(alias, route):
            raise TakenOut
        place = (alias, route.rollout_id, route.arm)
        self._members.setdefault(place, {})[request] = None
        request.place = place
        known = self._catalog.snapshot.rollouts.get(alias)
        if known is not None and known.id == route.rollout_id:
            self._migrate[place] = known.on_rollback == registry_pb2.IN_FLIGHT_MIGRATE

    def _is_out(self, alias: str, route: Route) -> bool:
        snapshot = self._catalog.snapshot
        if route.revision > snapshot.revision:
            return False  # a router that has seen more knows better; the gateway's next snapshot settles it
        if snapshot is not self._judged:
            self._judged, self._verdicts = snapshot, {}
        place = (alias, route.rollout_id, route.arm)
        verdict = self._verdicts.get(place)
        if verdict is None:
            verdict = out_of_force(snapshot, *place)
            if len(self._verdicts) < _MOST_VERDICTS:
                self._verdicts[place] = verdict
        return verdict

    def _drop(self, place: _Place, requests: Iterable[Request]) -> None:
        members = self._members[place]
        for request in list(requests):
            del members[request]
            request.place = None
        if not members:
            del self._members[place]
            self._migrate.pop(place, None)


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
