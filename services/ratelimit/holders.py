"""Which gateways were started anew: what their former lives left open ends at once, and not with the leases' time."""

from __future__ import annotations

from libs.mux import Session
from libs.quota import Ledger
from services.ratelimit.ports import Nanoseconds

_MOST_GONE = 1024


class Holders:
    """The callers that have reserved: an instance and its life, a nonce in its Hello.

    A life that was followed by another one of its instance is over, whatever comes later on an old stream: what it
    leaves ends. That a gateway is gone without a next life is seen by its leases, which nobody prolongs.
    """

    def __init__(self, *, ledger: Ledger, now: Nanoseconds) -> None:
        self._ledger = ledger
        self._now = now
        self._present: dict[str, str] = {}
        self._gone: dict[str, bool] = {}
        """Lives that are over, and whether something may be left of them."""

    def hold(self, session: Session) -> str:
        """The name of a session's caller."""
        name = session.state.get("holder")
        if name is None:
            instance = session.hello.instance
            name = session.state["holder"] = session.caller
            if name not in self._gone and self._present.get(instance) != name:
                self._present[instance] = name
                self._end_others(instance, name)
        return str(name)

    def _end_others(self, instance: str, present: str) -> None:
        for holder in self._ledger.holders:
            if holder != present and holder.rpartition("/")[0] == instance:
                self._gone[holder] = True
        while len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def sweep(self) -> int:
        """Ends leases of lives that are over, some at a time; returns how many."""
        ended = 0
        for holder, left in self._gone.items():
            if left:
                count = self._ledger.end_held_by(holder, self._now())
                self._gone[holder] = count > 0
                ended += count
        return ended
