"""Money per calendar day and month: two more bounds of a tenant as a whole, whose windows end at midnight in its time
zone.

Like other limits they hold what open leases reserve plus what was charged, and a charge counts when it is settled: a
lease of the evening that ends after midnight is spent on the new day. So no day and no month sees more settled than its
bound, if nothing settles above its reservation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from libs.quota.bucket import bucket_of
from libs.quota.dates import Period, Zone, Zones
from libs.quota.spent import BudgetState, Spent, Tally
from libs.quota.types import ALL_MODELS, Denied, LimitKind, LimitReport
from libs.quota.window import LOCAL, Part

ALERT_PERCENT = (80, 100)
"""When a budget names none."""


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """What a tenant may spend; 0 sets no bound."""

    monthly_microusd: int = 0
    daily_microusd: int = 0
    hard: bool = True
    """Refuse what is beyond; else only alerts."""
    alert_percent: tuple[int, ...] = ALERT_PERCENT
    time_zone: str = ""
    """The tenant's, as in `Zone`."""

    def shared(self, holders: int) -> BudgetSpec:
        """An equal part for each of `holders` that cannot ask one another: see `LimitSpec.shared`."""
        month, day = (bound and max(1, bound // holders) for bound in (self.monthly_microusd, self.daily_microusd))
        return replace(self, monthly_microusd=month, daily_microusd=day)


class Record(NamedTuple):
    """What is kept of a tenant's spend where no limiter is."""

    day: Tally = Tally()
    month: Tally = Tally()

    def joined(self, other: Record) -> Record:
        """See `Tally.joined`."""
        return Record(self.day.joined(other.day), self.month.joined(other.month))


class Alert(NamedTuple):
    """A threshold that was reached."""

    period: str
    """Its key."""
    percent: int
    monthly: bool


class Budget:
    """One tenant's."""

    __slots__ = ("_day", "_month", "_zones", "spec", "zone")

    def __init__(self, spec: BudgetSpec, zones: Zones) -> None:
        self._zones = zones
        self._day, self._month = Spent(), Spent()
        self.apply(spec)

    def apply(self, spec: BudgetSpec) -> None:
        """Makes `spec` the bounds; what was spent stays spent, on the days and in the months that it was."""
        self.spec = spec
        self.zone: Zone = self._zones.of(spec.time_zone)

    def charge(self, spend: int, now: int, part: Part = LOCAL) -> None:
        """Counts as spent now."""
        self._see(now)
        self._day.charge(spend, part)
        self._month.charge(spend, part)

    def void(self, spend: int, at: int, part: Part) -> None:
        """Takes back what was counted at `at`, in periods that have not ended since."""
        wall = at + self._zones.offset
        self._day.void(spend, self.zone.day(wall).key, part)
        self._month.void(spend, self.zone.month(wall).key, part)

    def left(self, held: int, now: int) -> int | None:
        """Micro-dollars that may still be reserved beside the `held`; None without a bound that refuses."""
        return min((report.remaining for report in self.reports(held, now)), default=None)

    def refusals(self, held: int, cost: int, now: int, hold_ns: int) -> Iterator[Denied]:
        """Why `cost` may not be spent beside the `held` that is reserved.

        The time to come back is the period's end; or `hold_ns`, an estimate, where only open reservations are in the
        way, which may end at any moment and take less.
        """
        if not self.spec.hard:
            return
        wall = now + self._zones.offset
        for kind, bound, used, period in self._bounds(wall):
            if used + held + cost > bound:
                wait = None if cost > bound else hold_ns if used + cost <= bound else period.ends - wall
                yield Denied(kind, ALL_MODELS, _report(bound, used + held, period, wall), cost, wait)

    def reports(self, held: int, now: int) -> Iterator[LimitReport]:
        """What a caller is told; nothing of what does not refuse."""
        if self.spec.hard:
            wall = now + self._zones.offset
            for _, bound, used, period in self._bounds(wall):
                yield _report(bound, used + held, period, wall)

    def spent(self, now: int) -> Iterator[tuple[bool, float]]:
        """Whether it is the month's, and the share of it that is spent."""
        for kind, bound, used, _ in self._bounds(now + self._zones.offset):
            yield kind is LimitKind.BUDGET_MONTH, used / bound

    def record(self, now: int) -> Record:
        """To be kept."""
        self._see(now)
        return Record(self._day.tally(), self._month.tally())

    def adopt(self, record: Record) -> None:
        """Takes the larger of what is known and what was kept, for each period."""
        self._day.adopt(record.day)
        self._month.adopt(record.month)

    def alerts(self, now: int) -> list[Alert]:
        """The thresholds that were reached since this was last asked, each once in a period."""
        self._see(now)
        spec = self.spec
        days = self._day.alert(spec.daily_microusd, spec.alert_percent)
        months = self._month.alert(spec.monthly_microusd, spec.alert_percent)
        return [
            *(Alert(self._day.latest, percent, False) for percent in days),
            *(Alert(self._month.latest, percent, True) for percent in months),
        ]

    def state(self, tenant: str) -> BudgetState:
        """At rest."""
        return BudgetState(tenant, self.zone.name, self._day.state(), self._month.state())

    def join(self, state: BudgetState, better: Collection[Part]) -> None:
        """See `Spent.join`."""
        self._day.join(state.days, better)
        self._month.join(state.months, better)

    def _see(self, now: int) -> None:
        wall = now + self._zones.offset
        self._day.see(self.zone.day(wall).key)
        self._month.see(self.zone.month(wall).key)

    def _bounds(self, wall: int) -> Iterator[tuple[LimitKind, int, int, Period]]:
        if self.spec.daily_microusd:
            day = self.zone.day(wall)
            yield LimitKind.BUDGET_DAY, self.spec.daily_microusd, self._day.used(day.key), day
        if self.spec.monthly_microusd:
            month = self.zone.month(wall)
            yield LimitKind.BUDGET_MONTH, self.spec.monthly_microusd, self._month.used(month.key), month


class Budgets:
    """All tenants' budgets, and what time it is where."""

    def __init__(self) -> None:
        self._zones = Zones()
        self._budgets: dict[str, Budget] = {}
        self._buckets: dict[int, dict[str, Budget]] = {}

    def __iter__(self) -> Iterator[str]:
        yield from self._budgets

    def set_wall(self, wall: int, now: int) -> None:
        """It is `wall`, Unix nanoseconds, at `now`. Call it now and then: only so a clock that was set is noticed."""
        self._zones.offset = wall - now

    def of(self, tenant: str) -> Budget | None:
        """A tenant's; None when it has none."""
        return self._budgets.get(tenant)

    def apply(self, specs: Mapping[str, BudgetSpec]) -> None:
        """Makes these the budgets, by tenant. A new one counts from now on; what is no more is forgotten."""
        for tenant in self._budgets.keys() - specs.keys():
            del self._budgets[tenant], self._buckets[bucket_of(tenant)][tenant]
        for tenant, spec in specs.items():
            if tenant in self._budgets:
                self._budgets[tenant].apply(spec)
            else:
                self._add(tenant, spec)

    def unknown_zones(self) -> list[str]:
        """Time zones that tenants have and nobody knows; theirs is UTC."""
        return sorted({budget.zone.name for budget in self._budgets.values() if not budget.zone.known})

    def state(self, first: int, past: int) -> tuple[BudgetState, ...]:
        """Those of some buckets, at rest."""
        return tuple(
            budget.state(tenant)
            for number in range(first, past)
            if number in self._buckets
            for tenant, budget in self._buckets[number].items()
        )

    def join(self, states: Iterable[BudgetState], newer: Callable[[str], Collection[Part]]) -> None:
        """See `Spent.join`. What is told of a tenant without a budget, as before the registry was read, is kept until
        `apply`."""
        for state in states:
            if state.tenant not in self._budgets:
                self._add(state.tenant, BudgetSpec(time_zone=state.time_zone))
            self._budgets[state.tenant].join(state, newer(state.tenant))

    def _add(self, tenant: str, spec: BudgetSpec) -> None:
        budget = self._budgets[tenant] = Budget(spec, self._zones)
        self._buckets.setdefault(bucket_of(tenant), {})[tenant] = budget


def _report(bound: int, used: int, period: Period, wall: int) -> LimitReport:
    return LimitReport(bound, max(0, bound - used), period.ends - wall if used else 0, period.ends - period.begins)
