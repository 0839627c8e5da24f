"""What a ledger decided since it was last asked."""

from __future__ import annotations

from collections import Counter

from libs.quota.lease import Lease
from libs.quota.scope import Scope
from libs.quota.settled import Key
from libs.quota.types import Batch, Closed, Taken


class Changes:
    """Collects decisions for `Ledger.take_changes`; whoever tracks them must take them regularly."""

    __slots__ = ("closed", "ended", "grown", "opened", "recorded", "taken", "told")

    def __init__(self) -> None:
        self.opened: list[Lease] = []
        self.grown: dict[Key, Lease] = {}
        self.closed: list[Closed] = []
        self.taken: Counter[str] = Counter()
        """Requests that the edge took, by tenant."""
        self.ended: list[Key] = []
        self.recorded: list[Key] = []
        self.told: dict[tuple[Key, str], Scope] = {}
        """Whose shares changed: by tenant and model, and holder."""

    def take(self, now: int) -> Batch:
        """All of them, once."""
        batch = Batch(
            tuple(lease.state(now) for lease in self.opened),
            tuple(self.closed),
            tuple(Taken(tenant, count) for tenant, count in self.taken.items()),
            tuple(self.ended),
            tuple(
                told
                for ((tenant, model), holder), scope in self.told.items()
                for told in scope.holdings.told(tenant, model, now, holder)
            ),
            tuple(lease.state(now) for lease in self.grown.values()),
            tuple(self.recorded),
        )
        for kept in (self.opened, self.closed, self.taken, self.ended, self.told, self.grown, self.recorded):
            kept.clear()
        return batch
