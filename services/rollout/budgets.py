"""Error budgets of all traffic and burn rates of arms, over the counts that gateways report."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from weir.registry.v1 import registry_pb2
from weir.rollout.v1 import rollout_pb2

from libs import burn
from libs.clock.stamps import timestamp
from libs.registry import RegistrySnapshot, slo_of
from libs.registry.terms import ANY
from services.rollout.outcomes import Rollout
from services.rollout.policy.evidence import Evidence, GoodBad
from services.rollout.policy.plan import Burn

_MAX_SOURCES = 1_000
_MAX_UNPACKED = 1 << 20
"""Bytes; many times what the objectives of one route and tier come to. A kilobyte may unpack to a megabyte."""
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"))

RouteTier = tuple[str, str]


@dataclass(slots=True)
class _Budget:
    """One route and tier."""

    tallies: dict[str, burn.Tally] = field(default_factory=dict)
    """By objective."""


class Budgets:
    """Counts of good and bad events over time, per route, tier and objective. Times are Unix seconds.

    Every replica counts by itself what gateways tell it; what was before its start it takes from the registry.
    """

    def __init__(self, *, scale: float, began: float = math.inf) -> None:
        """:param scale: factor on all windows.
        :param began: when this replica began to listen; never (inf) counts no first report.
        """
        self._scale = scale
        self._began = began
        self._windows = burn.scaled(burn.WINDOWS, scale)
        self._shortest = min(window.short for window in self._windows)
        self._longest = max(window.long for window in self._windows)
        self._budgets: dict[RouteTier, _Budget] = {}
        self._counted: dict[str, dict[tuple[RouteTier, str], GoodBad]] = {}

    @property
    def windows(self) -> tuple[burn.Window, ...]:
        """The pairs of windows, scaled."""
        return self._windows

    def restore(self, stored: Mapping[RouteTier, registry_pb2.ErrorBudget]) -> None:
        """Goes on with counts that somebody wrote down, where it has none of its own; unreadable ones are left."""
        for where, message in stored.items():
            if where in self._budgets or not message.windows:
                continue
            try:
                self._budgets[where] = _Budget(_unpacked(message.windows, self._scale))
            except burn.TallyError:
                continue

    def take(
        self,
        incarnation: str,
        objectives: Iterable[rollout_pb2.ObjectiveOutcomes],
        now: float,
        *,
        started: float = -math.inf,
    ) -> None:
        """Counts what is new since the incarnation's last report.

        Its first report counts when the gateway began after this replica and within the shortest window: then all in
        it is news, and of now. One that has run for longer says in it what happened in all that time, and what was
        before our start others may have written down. What a first report does not name began after it.

        Bad events of the tier "*", which the edge does not know, are shared out among the route's.

        :param started: when the gateway began to serve.
        """
        first = incarnation not in self._counted and not max(self._began, now - self._shortest) <= started <= now
        if incarnation not in self._counted and len(self._counted) >= _MAX_SOURCES:
            del self._counted[next(iter(self._counted))]
        counted = self._counted.setdefault(incarnation, {})
        for each in objectives:
            where = (each.route, each.tier)
            for objective, told in each.objectives.items():
                known = counted.get((where, objective), GoodBad())
                good, bad = max(0, told.good - known.good), max(0, told.bad - known.bad)
                if not good and not bad:
                    continue
                counted[where, objective] = GoodBad(known.good + good, known.bad + bad)
                if not first:
                    for tier, part in self._tiers(where, objective, bad, now):
                        self._tally((each.route, tier), objective).add(good, part, now)

    def status(self, snapshot: RegistrySnapshot, now: float) -> dict[RouteTier, registry_pb2.ErrorBudget]:
        """How every budget stands, without `windows`. Only what an SLO declares has a budget."""
        found = {}
        for where in sorted(self._budgets):
            slo = slo_of(snapshot, *where)
            made = registry_pb2.ErrorBudget(route=where[0], tier=where[1], at=timestamp(now))
            for objective, target in burn.slo_targets(slo).items() if slo is not None else ():
                tally = self._budgets[where].tallies.get(objective)
                if tally is not None:
                    made.objectives.append(self._objective(objective, tally, target, now))
            found[where] = made
        return found

    def packed(self, where: RouteTier) -> bytes:
        """The counts behind a budget, for `restore`."""
        tallies = self._budgets[where].tallies
        text = json.dumps({objective: tallies[objective].dump().decode() for objective in sorted(tallies)})
        return zlib.compress(text.encode())

    def _tiers(self, where: RouteTier, objective: str, bad: int, now: float) -> Iterable[tuple[str, int]]:
        """Whom bad events count against: their tier. What the edge lost without knowing the tier is shared out by
        what the route's tiers have been asked for of late, since an outage of the edge meets all alike."""
        route, tier = where
        if tier != ANY:
            return [(tier, bad)]
        asked = {
            tier: tally.count(self._longest, now).total
            for (each, tier), budget in self._budgets.items()
            if each == route and (tally := budget.tallies.get(objective)) is not None
        }
        return shares(bad, asked).items()

    def _tally(self, where: RouteTier, objective: str) -> burn.Tally:
        tallies = self._budgets.setdefault(where, _Budget()).tallies
        if objective not in tallies:
            tallies[objective] = burn.Tally(scale=self._scale)
        return tallies[objective]

    def _objective(self, objective: str, tally: burn.Tally, target: float, now: float) -> registry_pb2.ObjectiveBudget:
        period = burn.PERIOD * self._scale
        counted = tally.count(period, now)
        said = burn.burns(tally, target, now, windows=self._windows)
        made = registry_pb2.ObjectiveBudget(
            objective=objective,
            consumed=_finite(burn.consumed(tally, target, now, period=period)),
            good=counted.good,
            bad=counted.bad,
            alert=burn.alert_of(said) or "",
        )
        for each in said:
            made.burn_rates[show_window(each.window.long)] = _finite(each.long)
            made.burn_rates[show_window(each.window.short)] = _finite(each.short)
        return made


def shares(count: int, weights: Mapping[str, int]) -> dict[str, int]:
    """`count` in whole parts by these weights, equal ones where all are 0: rounded down, and what is left over goes one
    by one to the largest remainders. Without anybody to share among: nothing."""
    total = sum(weights.values())
    exact = {
        name: count * weight / total if total else count / len(weights)
        for name, weight in sorted(weights.items(), key=lambda each: (-each[1], each[0]))
    }
    parts = {name: math.floor(part) for name, part in exact.items()}
    over = sorted(exact, key=lambda name: parts[name] - exact[name])[: count - sum(parts.values())]
    return {name: part + (name in over) for name, part in parts.items()}


def exhausted(budgets: Iterable[registry_pb2.ErrorBudget]) -> tuple[str, ...]:
    """Budgets that are used up, in words: "generate/standard availability"."""
    return tuple(
        f"{budget.route}/{budget.tier} {objective.objective}"
        for budget in budgets
        for objective in budget.objectives
        if objective.consumed >= 1
    )


class ArmBurns:
    """Burn rates of the arms of one rollout. Times are Unix seconds.

    Only the windows that page: those for tickets fire at rates that a healthy service has on some days, which is no
    ground for taking a version back.
    """

    def __init__(self, *, scale: float) -> None:
        self._scale = scale
        self._windows = burn.scaled((each for each in burn.WINDOWS if each.severity == "page"), scale)
        self._tallies: dict[str, dict[str, burn.Tally]] = {}
        self._counted: dict[tuple[str, str], GoodBad] = {}

    def take(self, evidence: Evidence, now: float) -> None:
        """Counts what users met since the last look; mirrored copies are nobody's trouble."""
        sums: dict[tuple[str, str], GoodBad] = {}
        for stage, arm in evidence.items():
            if not stage.mirrored:
                for objective, events in arm.objectives.items():
                    key = (stage.arm, objective)
                    sums[key] = sums.get(key, GoodBad()) + events
        for (arm_name, objective), total in sums.items():
            known = self._counted.get((arm_name, objective), GoodBad())
            good, bad = max(0, total.good - known.good), max(0, total.bad - known.bad)
            if good or bad:
                self._counted[arm_name, objective] = GoodBad(known.good + good, known.bad + bad)
                tallies = self._tallies.setdefault(arm_name, {})
                if objective not in tallies:
                    tallies[objective] = burn.Tally(scale=self._scale)
                tallies[objective].add(good, bad, now)

    def of(self, targets: Mapping[str, float], now: float) -> dict[str, tuple[Burn, ...]]:
        """By arm: how fast each objective burns over its most urgent pair of windows.

        :param targets: objective → share that must be good.
        """
        return {
            arm: tuple(
                _most_urgent(objective, burn.burns(tally, targets[objective], now, windows=self._windows))
                for objective, tally in sorted(tallies.items())
                if objective in targets
            )
            for arm, tallies in self._tallies.items()
        }


class AllArmBurns:
    """`ArmBurns` of every rollout."""

    def __init__(self, *, scale: float) -> None:
        self._scale = scale
        self._rollouts: dict[Rollout, ArmBurns] = {}

    def __getitem__(self, rollout: Rollout) -> ArmBurns:
        if rollout not in self._rollouts:
            self._rollouts[rollout] = ArmBurns(scale=self._scale)
        return self._rollouts[rollout]

    def keep(self, rollouts: Mapping[str, str]) -> None:
        """Forgets rollouts other than these (alias → id)."""
        for rollout in [known for known in self._rollouts if rollouts.get(known.alias) != known.id]:
            del self._rollouts[rollout]


def show_window(seconds: float) -> str:
    """A window's length as in "5m", in the largest unit that it fills."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:.3g}s"


def _most_urgent(objective: str, said: Iterable[burn.Burn]) -> Burn:
    # One that fires, else the one that is nearest to it.
    found = max(said, key=lambda each: (each.fires, min(each.long, each.short) / each.window.factor))
    window = found.window
    return Burn(
        objective=objective,
        alerting=found.fires,
        rate=_finite(min(found.long, found.short)),
        threshold=window.factor,
        window=f"{show_window(window.long)}/{show_window(window.short)}",
    )


def _finite(value: float) -> float:
    """JSON has no infinity; a budget of nothing burns a million times too fast."""
    return value if math.isfinite(value) else 1e6


def _unpacked(packed: bytes, scale: float) -> dict[str, burn.Tally]:
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(packed, _MAX_UNPACKED)
        if not unpacking.eof:
            raise burn.TallyError("it is cut short, or larger than a budget can be")
        stored = json.loads(text)
        if any(json.loads(text)["scale"] != scale for text in stored.values()):
            raise burn.TallyError("counted with another scale")
        return {str(objective): burn.Tally.load(text.encode()) for objective, text in stored.items()}
    except (ValueError, zlib.error, AttributeError, KeyError, RecursionError, TypeError) as error:
        raise burn.TallyError(f"not a stored budget: {error}") from error
