"""Which gateways are gone for good, so that the leases they can no longer settle end soon and not at their very end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from weir.registry.v1 import registry_pb2

from libs.mux import Session
from libs.quota import Ledger
from services.ratelimit.ports import Nanoseconds

_SECOND = 1_000_000_000


class Holders:
    """The callers that have reserved.

    A caller is gone when it has had neither a session with this replica nor an endpoint in the registry for the grace
    time: a gateway that merely moved its streams or lost the network is in one of them. A gateway that was started anew
    under its old name is known by its endpoint's time of start: leases from before that are nobody's. What a lease
    reserved stays counted; a settle that comes all the same changes nothing.
    """

    def __init__(self, *, ledger: Ledger, now: Nanoseconds, wall: Nanoseconds, grace_ns: int) -> None:
        self._ledger = ledger
        self._now = now
        self._wall = wall
        self._grace_ns = grace_ns
        self._sessions: Counter[str] = Counter()
        self._missing: dict[str, int] = {}
        self._started: dict[str, int] = {}
        self._anew: dict[str, int] = {}

    def hold(self, session: Session) -> str:
        """The name of a session's caller, which counts as present until the session ends."""
        name = session.state.get("holder")
        if name is None:
            name = session.state["holder"] = session.hello.instance
            self._sessions[name] += 1
            session.on_close(lambda: self._release(name))
        return str(name)

    def _release(self, name: str) -> None:
        self._sessions[name] -= 1
        if not self._sessions[name]:
            del self._sessions[name]

    def sweep(self, callers: Mapping[str, registry_pb2.Endpoint], others: frozenset[str]) -> int:
        """Ends leases of callers that are gone; returns how many.

        :param callers: endpoints of possible callers, by instance.
        :param others: other live replicas; leases that they gave are their business.
        """
        now, ended = self._now(), 0
        for name in self._ledger.holders:
            endpoint = callers.get(name)
            if endpoint is not None:
                ended += self._look_at_start(name, endpoint.started_at.seconds, now, others)
            if endpoint is not None or name in self._sessions:
                self._missing.pop(name, None)
            elif now - self._missing.setdefault(name, now) >= self._grace_ns:
                ended += self._ledger.end_held_by(name, now, but_by=others)
        self._missing = {name: since for name, since in self._missing.items() if name in self._ledger.holders}
        return ended

    def _look_at_start(self, name: str, started: int, now: int, others: frozenset[str]) -> int:
        if self._started.setdefault(name, started) != started:
            self._started[name] = started
            self._anew[name] = now
        if name not in self._anew or now - self._anew[name] < self._grace_ns:
            return 0
        del self._anew[name]
        opened_before = now - max(0, self._wall() - started * _SECOND)
        return self._ledger.end_held_by(name, now, opened_before=opened_before, but_by=others)
