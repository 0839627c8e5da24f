"""The audit log beside the limiter's ledger and what callers say was delivered: every difference, by name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from libs.quota.dates import Zones
from libs.usage.records import Used

_SECOND = 1_000_000_000


class Spent(NamedTuple):
    """What the ledger says that a tenant has spent, in micro-dollars, on a day and in a month of its time zone."""

    tenant: str
    time_zone: str
    day: str
    day_microusd: int
    month: str
    month_microusd: int


class Delivered(NamedTuple):
    """What a caller got, by its own count."""

    request_id: str
    prompt_tokens: int
    completion_tokens: int
    rows: int = 0


class Difference(NamedTuple):
    """Where two books differ. `what` is of a closed set: "doubled", "missing", "tokens", "rows", "unknown",
    "spend_day", "spend_month", "gap"."""

    what: str
    subject: str
    """The request, tenant or source."""
    detail: str


@dataclass(slots=True)
class Books:
    """The log, read once from its beginning."""

    spent: Mapping[str, Spent] = field(default_factory=dict)
    """By tenant."""
    requests: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Prompt and completion tokens, and rows, of each request."""
    doubled: list[str] = field(default_factory=list)
    unknown: dict[str, tuple[str, int, int, int]] = field(default_factory=dict)
    """Of requests of which nobody knows: the tenant, and the tokens, rows and money that they can have used at most."""
    drawn: dict[str, int] = field(default_factory=dict)
    """By lease, the rows of predictions that are known."""
    days: dict[str, int] = field(default_factory=dict)
    months: dict[str, int] = field(default_factory=dict)
    """Micro-dollars by tenant, in the ledger's present day and month."""
    _zones: Zones = field(default_factory=Zones)

    def add(self, used: Used) -> None:
        """One record."""
        event = used.event
        if used.unknown:
            if used.id not in self.requests:
                self.unknown[used.id] = event.tenant, event.at_most_tokens, event.at_most_rows, event.at_most_microusd
            return
        if event.lease:
            self.drawn[event.lease] = self.drawn.get(event.lease, 0) + event.rows
        self.unknown.pop(used.id, None)
        if used.vanished:
            return
        usage = event.prompt_tokens, event.completion_tokens, event.rows
        if (before := self.requests.get(used.id)) is not None:
            if not any(usage):
                return  # refused by one of those whom the edge asked, one after the other, under the request's id
            if any(before):
                self.doubled.append(used.id)
        self.requests[used.id] = usage
        known = self.spent.get(event.tenant)
        if known is not None and event.spend_microusd:
            at, zone = _nanoseconds(used.time), self._zones.of(known.time_zone)
            if zone.day(at).key == known.day:
                self.days[event.tenant] = self.days.get(event.tenant, 0) + event.spend_microusd
            if zone.month(at).key == known.month:
                self.months[event.tenant] = self.months.get(event.tenant, 0) + event.spend_microusd

    def differences(
        self, delivered: Iterable[Delivered], gaps: Sequence[tuple[str, str, int, int]]
    ) -> list[Difference]:
        """All of them. `gaps` are (source, reason, first, last) of records that are not in the log."""
        found = [Difference("doubled", name, "it is in the log more than once") for name in self.doubled]
        for name, (tenant, tokens, rows, _) in self.unknown.items():
            most = f"{max(0, rows - self.drawn.get(name, 0))} rows" if rows else f"{tokens} tokens"
            found.append(Difference("unknown", name, f"{tenant}: at most {most}, who served it is gone"))
        for source, reason, first, last in gaps:
            found.append(Difference("gap", source, f"records {first} to {last}: {reason}"))
        for each in delivered:
            known = self.requests.get(each.request_id)
            if known is None:
                if each.request_id not in self.unknown:
                    found.append(Difference("missing", each.request_id, "it was delivered and is not in the log"))
            elif known[:2] != (each.prompt_tokens, each.completion_tokens):
                told = f"delivered {each.prompt_tokens}+{each.completion_tokens} tokens, logged {known[0]}+{known[1]}"
                found.append(Difference("tokens", each.request_id, told))
            elif known[2] != each.rows:
                found.append(Difference("rows", each.request_id, f"delivered {each.rows} rows, logged {known[2]}"))
        return found + [difference for spent in self.spent.values() for difference in self._spend(spent)]

    def _spend(self, spent: Spent) -> list[Difference]:
        held = sum(money for tenant, _, _, money in self.unknown.values() if tenant == spent.tenant)
        found = []
        for what, period, ledger, logged in (
            ("spend_day", spent.day, spent.day_microusd, self.days.get(spent.tenant, 0)),
            ("spend_month", spent.month, spent.month_microusd, self.months.get(spent.tenant, 0)),
        ):
            # What is unknown was charged as it was reserved, in a period that nobody can tell any more.
            if not logged <= ledger <= logged + held:
                told = f"{period}: the ledger has {ledger} µ$, the log {logged} µ$"
                found.append(Difference(what, spent.tenant, told + (f", at most {held} µ$ unknown" if held else "")))
        return found


def _nanoseconds(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp() * _SECOND)
