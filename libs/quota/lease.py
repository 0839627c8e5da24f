"""A live reservation: what it occupies of every limit that covers it."""

from __future__ import annotations

from libs.quota.scope import Scope
from libs.quota.shares import OwnShare
from libs.quota.types import Ask, Opened
from libs.quota.window import Part

_HOLD_SHARE = 8
"""A lease's duration moves the average by one part in this many."""


class Lease:
    """A live reservation."""

    __slots__ = (
        "each",
        "expires",
        "here",
        "holder",
        "key",
        "model",
        "open",
        "opened",
        "over_quota",
        "part",
        "requests",
        "scopes",
        "shares",
        "spend",
        "tokens",
        "unit",
        "version",
    )

    def __init__(self, ask: Ask, *, tokens: int, requests: int, scopes: list[Scope], part: Part, now: int) -> None:
        self.key = (ask.tenant, ask.request_id)
        self.model = ask.model
        self.version = ask.version
        self.unit = ask.unit
        """What `tokens` are."""
        self.tokens = tokens
        self.spend = ask.spend
        self.requests = requests
        self.each = ask.requests
        """Requests that count with the model's own limits."""
        self.over_quota = False
        self.holder = ask.holder
        self.part = part
        self.scopes = scopes
        self.opened = now
        self.expires = now
        self.open = True
        self.here = False
        """Its gateway has spoken of it with this replica."""
        self.shares: tuple[OwnShare | None, ...] = ()
        """At a gateway: out of which shares it was given."""

    def take(self) -> None:
        """Occupies its slots and shares."""
        self._hold(self.tokens, self.spend, self.slots)

    @property
    def slots(self) -> int:
        """How many it occupies."""
        return self.unit.slots

    def _hold(self, tokens: int, spend: int, slots: int) -> None:
        for scope in self.scopes:
            scope.in_use += slots
            scope.held_spend += spend
            if scope.unit is self.unit:
                scope.held_tokens += tokens

    def grow(self, tokens: int, spend: int) -> None:
        """Reserves so much in all; never less than before."""
        more, dearer = max(0, tokens - self.tokens), max(0, spend - self.spend)
        self.tokens += more
        self.spend += dearer
        self._hold(more, dearer, 0)

    def release(self, now: int) -> None:
        """Gives them back."""
        self.open = False
        held = now - self.opened
        self._hold(-self.tokens, -self.spend, -self.slots)
        for scope in self.scopes:
            scope.hold_ns += (held - scope.hold_ns) // _HOLD_SHARE if scope.hold_ns else held

    def state(self, now: int) -> Opened:
        """The lease at rest."""
        tenant, request_id = self.key
        return Opened(
            tenant,
            self.model,
            request_id,
            self.version,
            self.tokens,
            self.spend,
            self.requests,
            self.over_quota,
            self.holder,
            now - self.opened,
            self.expires - now,
            self.part,
            self.each,
        )
