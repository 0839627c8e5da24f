"""All that is known of rollouts: counts, scores, burn rates, the registry. Put together here for a decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from weir.registry.v1 import registry_pb2
from weir.rollout.v1 import rollout_pb2 as pb

from libs import burn
from libs.clock import Clock
from libs.registry import RegistryView, slo_of, tier_of
from libs.rollouts import BASELINE, is_live
from services.rollout import convert, metrics
from services.rollout.budgets import AllArmBurns, Budgets, RouteTier, exhausted
from services.rollout.config import Settings
from services.rollout.outcomes import Outcomes, Rollout
from services.rollout.policy.evidence import ArmEvidence, Evidence, Stage
from services.rollout.policy.phases import Phase
from services.rollout.policy.plan import Burn, Situation
from services.rollout.scores import Score, Scores, Taken

_ROUTE = "generate"
SERVING = ("gateway", "predictor")
"""Services whose processes serve callers, and report what became of that."""
_EDGE = "controlplane"
"""Reports what the edge lost, and nothing else: who is heard of that serves nobody knows by it."""
_STATUS_SECONDS = 1.0
"""Budgets move slowly, and looking through all their windows costs milliseconds."""


class Knowledge:
    """What this replica knows. Every replica takes in everything, so that any of them can lead at once."""

    def __init__(self, *, settings: Settings, view: RegistryView, clock: Clock) -> None:
        self._settings = settings
        self._view = view
        self._clock = clock
        self._outcomes = Outcomes(max_sources=settings.max_sources, max_arms=settings.max_arms)
        self._scores = Scores(memory=settings.score_memory)
        self._burns = AllArmBurns(scale=settings.arm_burn_scale)
        self.budgets = Budgets(scale=settings.burn_scale, began=clock.time())
        """Of all traffic."""
        self._started = clock.monotonic()
        self._streams: Counter[str] = Counter()
        self._seen: dict[Rollout, tuple[Phase, float]] = {}
        self._marks: dict[Rollout, tuple[tuple[object, ...], int, int]] = {}
        self._budget_status: dict[RouteTier, registry_pb2.ErrorBudget] = {}
        self._budget_time = float("-inf")
        self._callbacks: list[Callable[[set[str]], None]] = []

    def on_change(self, callback: Callable[[set[str]], None]) -> None:
        """Calls back with the aliases of rollouts whose evidence changed; it must not block."""
        self._callbacks.append(callback)

    @contextmanager
    def listening_to(self, source: str) -> Iterator[None]:
        """While a gateway's stream is open it is heard, though it may have nothing to tell."""
        self._streams[source] += 1
        try:
            yield
        finally:
            self._streams[source] -= 1
            if not self._streams[source]:
                del self._streams[source]

    def take_report(self, report: pb.ReportOutcomesRequest) -> None:
        """A frame of a gateway."""
        now = self._clock.monotonic()
        changed = self._outcomes.take(report.source, report.incarnation, convert.arm_reports(report.arms), now)
        endpoints = self._view.snapshot.endpoints
        found = (endpoints.get((service, report.source)) for service in (*SERVING, _EDGE))
        started = next((each.started_at.seconds for each in found if each is not None), 0)
        incarnation = f"{report.source} {report.incarnation}"
        self.budgets.take(incarnation, report.objectives, self._clock.time(), started=started)
        metrics.REPORTS.inc()
        metrics.IGNORED.set(self._outcomes.ignored)
        self._tell({rollout.alias for rollout in changed})

    def take_scores(self, scores: list[Score]) -> tuple[Taken, int]:
        """Scores of arms of live rollouts; how many were of others."""
        rollouts = self._view.snapshot.rollouts
        known = [score for score in scores if _has_arm(rollouts.get(score.rollout.alias), score)]
        taken = self._scores.take(known)
        unknown = len(scores) - len(known)
        for result, count in (("accepted", taken.accepted), ("repeated", taken.repeated), ("unknown", unknown)):
            metrics.SCORES.labels(result).inc(count)
        self._tell({rollout.alias for rollout in taken.rollouts})
        return taken, unknown

    def sources(self) -> set[str]:
        """Gateways that are heard."""
        heard = set(self._streams) | self._outcomes.heard(self._clock.monotonic() - self._settings.stale_seconds)
        return heard - {each.instance for each in self._view.snapshot.endpoints_of(_EDGE)}

    @property
    def settled(self) -> bool:
        """Every registered gateway has reported since our start, or had the time to: a replica that has just started
        knows only what it was told so far."""
        if self._clock.monotonic() - self._started >= self._settings.stale_seconds:
            return True
        heard = self.sources()
        snapshot = self._view.snapshot
        registered = {each.instance for service in SERVING for each in snapshot.endpoints_of(service)}
        return bool(heard) and registered <= heard

    def evidence(self, rollout: registry_pb2.Rollout) -> Evidence:
        """All counts of a rollout, with the scores from elsewhere in its present stage."""
        which = Rollout(rollout.alias, rollout.id)
        found = self._outcomes.evidence(which)
        scores = self._scores.of(which)
        if not scores:
            return found
        state = convert.state(rollout)
        merged = dict(found)
        for arm, of_arm in scores.items():
            mirrored = state.phase is Phase.SHADOW and arm != BASELINE
            stage = Stage(state.phase, state.step, arm, mirrored)
            merged[stage] = merged.get(stage, ArmEvidence()) + ArmEvidence(scores=dict(of_arm))
        return merged

    def situation(self, rollout: registry_pb2.Rollout) -> Situation:
        """All that a decision about a rollout needs besides itself."""
        snapshot = self._view.snapshot
        now = self._clock.time()
        evidence = self.evidence(rollout)
        versions = (rollout.baseline, *(arm.model_version for arm in rollout.arms))
        switch = snapshot.switches.get("rollouts") or registry_pb2.RolloutSwitch()
        return Situation(
            now=now,
            evidence=evidence,
            workers=convert.workers(snapshot, versions),
            burns=self._arm_burns(rollout, evidence, now),
            exhausted=self._exhausted(rollout),
            frozen=(switch.reason or "no reason given") if switch.freeze else "",
            killed=(switch.reason or "no reason given") if switch.kill else "",
            watched=self._watched(rollout),
            recent=self._recent(rollout, evidence),
        )

    def budget_status(self, *, fresh: bool = False) -> Mapping[RouteTier, registry_pb2.ErrorBudget]:
        """How every budget stands: now, or at most a second ago."""
        now = self._clock.monotonic()
        if fresh or now - self._budget_time >= _STATUS_SECONDS:
            self._budget_time = now
            self._budget_status = self.budgets.status(self._view.snapshot, self._clock.time())
            metrics.publish_budgets(self._budget_status.values())
        return self._budget_status

    def restore(self) -> None:
        """Goes on with budgets from before this replica's start."""
        self.budgets.restore(self._view.snapshot.error_budgets)

    def forget(self) -> None:
        """Drops what is known of rollouts that are no more."""
        rollouts = {alias: rollout.id for alias, rollout in self._view.snapshot.rollouts.items()}
        self._outcomes.keep(rollouts, self._clock.monotonic())
        self._scores.keep(rollouts)
        self._burns.keep(rollouts)
        for which in [known for known in self._seen if rollouts.get(known.alias) != known.id]:
            del self._seen[which]
        for which in [known for known in self._marks if rollouts.get(known.alias) != known.id]:
            del self._marks[which]
        metrics.SOURCES.set(len(self.sources()))

    def _watched(self, rollout: registry_pb2.Rollout) -> float:
        """Monotonic seconds since this replica first looked at the rollout in its phase."""
        which, phase = Rollout(rollout.alias, rollout.id), convert.state(rollout).phase
        now = self._clock.monotonic()
        if which not in self._seen or self._seen[which][0] is not phase:
            self._seen[which] = (phase, now)
        return now - self._seen[which][1]

    def _recent(self, rollout: registry_pb2.Rollout, evidence: Evidence) -> tuple[int, int]:
        """Requests of all arms, and of these and the baseline, that began since the present weights apply."""
        which = Rollout(rollout.alias, rollout.id)
        state = convert.state(rollout)
        counts = {
            name: evidence.get(Stage(state.phase, state.step, name), ArmEvidence()).started
            for name in (BASELINE, *(arm.name for arm in rollout.arms))
        }
        every = sum(counts.values())
        ours = every - counts[BASELINE]
        applied = (state.phase, state.step, state.weights)
        if self._marks.get(which, ((),))[0] != applied:
            self._marks[which] = (applied, ours, every)
        _, ours_then, every_then = self._marks[which]
        return max(0, ours - ours_then), max(0, every - every_then)

    def _arm_burns(self, rollout: registry_pb2.Rollout, evidence: Evidence, now: float) -> dict[str, tuple[Burn, ...]]:
        which = Rollout(rollout.alias, rollout.id)
        burns = self._burns[which]
        burns.take(evidence, now)
        targets: dict[str, float] = {}
        for route, tier in sorted(self._outcomes.places(which)):
            slo = slo_of(self._view.snapshot, route, tier)
            for objective, target in burn.slo_targets(slo).items() if slo is not None else ():
                # Of several routes the mildest objective: a breach of it is a breach of all.
                targets[objective] = min(target, targets.get(objective, target))
        return burns.of(targets, now)

    def _exhausted(self, rollout: registry_pb2.Rollout) -> tuple[str, ...]:
        versions = self._view.snapshot.model_versions
        names = (rollout.baseline, *(arm.model_version for arm in rollout.arms))
        tiers = {tier_of(versions[name]) for name in names if name in versions}
        places = self._outcomes.places(Rollout(rollout.alias, rollout.id))
        routes = {route for route, _ in places} or {_ROUTE}
        concerned = [
            budget for (route, tier), budget in self.budget_status().items() if tier in tiers and route in routes
        ]
        return exhausted(concerned)

    def _tell(self, aliases: set[str]) -> None:
        if aliases:
            for callback in self._callbacks:
                callback(aliases)


def _has_arm(rollout: registry_pb2.Rollout | None, score: Score) -> bool:
    if rollout is None or rollout.id != score.rollout.id or not is_live(rollout):
        return False
    return score.arm == BASELINE or any(arm.name == score.arm for arm in rollout.arms)
