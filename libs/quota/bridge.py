"""A gateway's end of the quota: what it serves, and what it gives out by itself while nobody can be asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from libs.quota.budget import BudgetSpec
from libs.quota.ledger import Ledger
from libs.quota.settled import Key
from libs.quota.shares import Share
from libs.quota.types import Admitted, Ask, Denied, LimitSpec, SettledAlready
from libs.quota.window import MINUTE_NS

T = TypeVar("T")
_MOST_SEEN = 50_000


class _Running(NamedTuple, Generic[T]):
    ask: T
    over_quota: bool
    until: int
    tokens: int
    spend: int
    grown: bool


class Bridge(Generic[T]):
    """Pure. `T` is how the shell keeps a Reserve, to ask it again.

    While the tenant's owner answers, this keeps the shares that it tells and the requests that run, whose leases are
    prolonged by their ids. While nobody answers, `reserve` gives out of the shares. Where none was told, or it has
    ended, that is an equal part of the limits for each gateway, of which what this gateway served within the last
    period is a part, whoever granted it; and of money nothing. What was given out so is told to the owner as soon as
    one can be reached: it is among the running requests, and unknown there.
    """

    def __init__(self, *, retry_ns: int = 1_000_000_000) -> None:
        self._ledger = Ledger(retry_ns=retry_ns, money_needs_share=True)
        self._seen: dict[str, int] = {}
        self._running: dict[Key, _Running[T]] = {}
        self._untold: dict[str, dict[str, int]] = {}
        """By tenant, what was given out here and is not known yet to have come to the owner; since when."""

    def apply(
        self, limits: Mapping[Key, LimitSpec], budgets: Mapping[str, BudgetSpec], gateways: int, now: int
    ) -> None:
        """Makes these the limits and budgets, of which this is one of so many gateways."""
        self._ledger.apply_budgets(budgets)
        self._ledger.apply_limits({key: spec.shared(gateways) for key, spec in limits.items()}, now)

    def seen(self, tenant: str) -> int:
        """The number of the last shares that came when the owner knew of all that had been given out here."""
        return self._seen.get(tenant, 0)

    def told(self, tenant: str, number: int, shares: Iterable[Share], until: int, now: int) -> None:
        """These came from the owner; `until` counts from when it was asked.

        While the owner may not have known of what was given out here, nothing more may be: it held an earlier share for
        that, and holds no more than the larger of both. It goes on holding that one, since this one is not named yet.
        """
        untold = self._untold.get(tenant)
        if untold:
            self._untold[tenant] = untold = {rid: at for rid, at in untold.items() if at + MINUTE_NS > now}
        if untold:
            shares = [Share(share.model, *(kind and 0 for kind in share[1:])) for share in shares]
        else:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen[tenant] = number
        self._ledger.own(tenant, shares, until, now)

    def runs(self, key: Key) -> bool:
        """It was granted and has not ended."""
        return key in self._running

    def served(self, key: Key, ask: T, *, over_quota: bool, until: int, tokens: int, spend: int) -> None:
        """The owner granted it, or more for it; `tokens` and `spend` in all. It runs no longer than `until`."""
        self._running[key] = _Running(ask, over_quota, until, tokens, spend, key in self._running)

    def reserve(self, ask: Ask, kept: T, *, lease_ns: int, until: int, now: int) -> Admitted | Denied | SettledAlready:
        """Decides here; of what runs already, about what it is to have beyond that."""
        tokens, spend = ask.tokens, ask.spend
        running = self._running.get((ask.tenant, ask.request_id))
        if running is not None:
            self._ledger.expire(now)
            held = self._ledger.books.lease((ask.tenant, ask.request_id))
            if held is None:
                self._ledger.forget_ended(ask.tenant, ask.request_id)
            ask = ask._replace(
                tokens=tokens - running.tokens + (held.tokens if held else 0),
                spend=max(0, spend - running.spend) + (held.spend if held else 0),
                count_request=False,
                grows=False,
            )
        outcome = self._ledger.reserve(ask, lease_ns=lease_ns, now=now)
        if isinstance(outcome, Admitted):
            over_quota = outcome.over_quota
            self.served(
                (ask.tenant, ask.request_id), kept, over_quota=over_quota, until=until, tokens=tokens, spend=spend
            )
            self._untold.setdefault(ask.tenant, {})[ask.request_id] = now
        return outcome

    def taken(self, key: Key) -> None:
        """The owner knows it: it has answered."""
        untold = self._untold.get(key[0])
        if untold is not None:
            untold.pop(key[1], None)
            if not untold:
                del self._untold[key[0]]

    def settle(self, tenant: str, model: str, request_id: str, tokens: int, now: int, *, spend: int) -> bool:
        """It has ended, and counts here for a period, whoever granted it. Whether it was served over quota."""
        running = self._running.pop((tenant, request_id), None)
        over_quota = running is not None and running.over_quota
        self._ledger.settle(tenant, model, request_id, tokens, now, spend=spend, over_quota=over_quota)
        return over_quota

    def running(self, now: int) -> Iterator[Key]:
        """What runs. What should have ended is not looked after any more. Ask for all of it several times a minute:
        leases of what was given out here go on with that, also while no owner can be told."""
        for key, each in list(self._running.items()):
            if each.until <= now:
                del self._running[key]
            else:
                if self._ledger.live_leases:  # mostly none: the owner answers
                    self._ledger.renew(key[0], key[1:], lease_ns=MINUTE_NS, now=now)
                yield key

    def grown(self, now: int) -> Iterator[Key]:
        """What runs with more than it began with. An owner may know less of it, and yet its lease."""
        return (key for key in self.running(now) if self._running[key].grown)

    def lost(self, key: Key) -> tuple[T, bool] | None:
        """To ask again for what the owner does not know: the Reserve, and whether it was over quota."""
        running = self._running.get(key)
        return None if running is None else (running.ask, running.over_quota)
