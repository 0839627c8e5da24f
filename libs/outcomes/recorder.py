"""Turns ended requests into counts. Called once per request, at its end; nothing here waits or fails.

What is under no rollout costs its objectives' counts alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from libs.clock import Clock
from libs.errors import WeirError
from libs.outcomes.counts import BUCKETS, ArmKey, Begun, Sample
from libs.outcomes.objectives import AVAILABILITY, Objectives, Ran, judge
from libs.outcomes.standing import FAULTS, NOBODY, Standing, of_error
from libs.outcomes.table import OutcomeTable
from libs.quota import Price, PriceBook
from libs.registry import RegistrySnapshot, tier_of
from libs.rollouts import is_live
from libs.routing import Route, RouteRequest
from libs.telemetry.counter import Count, FastCounter

_EVENTS = FastCounter(
    "weir_slo_events_total", "Requests by declared objective", ("route", "tier", "objective", "outcome")
)


class Known(Protocol):
    """What the process knows of the registry."""

    @property
    def snapshot(self) -> RegistrySnapshot:
        """As it is now."""

    @property
    def costs(self) -> PriceBook:
        """What is used costs us."""

    def objectives(self, route: str, tier: str) -> Objectives:
        """What is declared for a route and tier."""

    def arm_key(self, alias: str, route: Route) -> ArmKey | None:
        """Where a request counts that got this route under this name; None outside rollouts."""

    def key_bucket(self, arm: ArmKey, asked: RouteRequest, buckets: int) -> int:
        """The bucket of a caller's sticky key."""

    def has_workers(self, model_version: str) -> bool:
        """Live workers have the version ready."""


class Recorder:
    """One per process."""

    def __init__(self, known: Known, *, clock: Clock) -> None:
        self.table = OutcomeTable()
        self._known = known
        self._clock = clock

    def began(
        self, arm: ArmKey | None, asked: RouteRequest | None, *, given: float, model_version: str, route: str, tier: str
    ) -> Begun | None:
        """A request was given an arm; one of the calls below, or `over`, must follow.

        :param asked: what the router was asked, for its sticky key; None of a mirrored copy.
        :param given: seconds to its deadline.
        """
        if arm is None:
            return None
        bucket = self._known.key_bucket(arm, asked, BUCKETS) if asked is not None else None
        return self._begin(arm, bucket, given, model_version, route, tier)

    def over(self, begun: Begun | None) -> None:
        """It is over and says nothing of its arm; nothing if it counted before."""
        self.table.end(begun)

    def ended(
        self, ran: Ran, *, route: str, tier: str, given: float, arm: ArmKey | None, begun: Begun | None = None
    ) -> None:
        """A request that ran is over.

        :param given: seconds from its arrival to its deadline.
        :param arm: where it counts; None outside rollouts.
        :param begun: what `began` gave.
        """
        objectives = self._known.objectives(route, tier)
        general, of_arm = of_error(ran.error, patient=given >= objectives.patience)
        self._judge(route, tier, judge(objectives, general, ran))
        if arm is not None:
            self._sample(ran, objectives, of_arm, arm, begun, route, tier)
        self.over(begun)

    def refused(
        self,
        *,
        route: str,
        model: str,
        asked: Route | None,
        error: WeirError,
        given: float,
        over_quota: bool,
        begun: Begun | None = None,
        answered: bool = False,
    ) -> None:
        """A request was refused before it ran. `asked` is what it would have got under the name `model`; None when that
        is nothing. `begun` is what `began` gave. `answered`: something else answered it, which `ended` is told with no
        arm afterwards, so that its arm alone hears of the refusal."""
        if asked is not None:
            objectives = self._known.objectives(route, asked.tier)
            general, of_arm = of_error(error, patient=given >= objectives.patience, over_quota=over_quota)
            told = [(AVAILABILITY, False)] if objectives.availability and general is Standing.BAD else []
            self._judge(route, asked.tier, () if answered else told)
            arm = self._known.arm_key(model, asked) if of_arm is Standing.BAD else None
            if arm is not None and (error.limit != NOBODY or self._baseline_has_workers(arm)):
                sample = Sample(failed=True, objectives=told)
                self._count(begun, arm, sample, asked.model_version, route, asked.tier)
        self.over(begun)

    def mirror_began(self, arm: ArmKey, *, given: float, model_version: str, route: str) -> Begun | None:
        """A mirrored copy is about to be made; see `began`."""
        tier = self._tier(model_version)
        return self.began(arm, None, given=given, model_version=model_version, route=route, tier=tier)

    def mirrored(self, arm: ArmKey, ran: Ran, *, route: str, begun: Begun | None = None) -> None:
        """A mirrored copy is over, however it ended: it counts under its arm, and against no objective of users.

        :param route: the user's, such as "generate".
        """
        tier = self._tier(ran.model_version)
        _, of_arm = of_error(ran.error, patient=True)
        self._sample(ran, self._known.objectives(route, tier), of_arm, arm, begun, route, tier)

    def mirror_failed(
        self, arm: ArmKey, error: WeirError, *, model_version: str, route: str, begun: Begun | None = None
    ) -> None:
        """A mirrored copy failed or was refused: counts if that is its arm's fault (a lost worker, a failed engine, a
        fault of ours); having found no place is what such copies are for."""
        if error.reason in FAULTS:
            self._count(begun, arm, Sample(failed=True), model_version, route, self._tier(model_version))

    def score(self, arm: ArmKey, metric: str, value: float) -> None:
        """Add a score to an arm that has counts already."""
        self.table.score(arm, metric, value)

    def sweep(self) -> None:
        """Forget ended rollouts; called about twice a second."""
        live = {rollout.id for rollout in self._known.snapshot.rollouts.values() if is_live(rollout)}
        self.table.sweep(live, self._clock.monotonic())

    def _begin(
        self, arm: ArmKey, bucket: int | None, given: float, model_version: str, route: str, tier: str
    ) -> Begun | None:
        begun = Begun(arm, math.floor(self._clock.time()), self._clock.monotonic(), bucket)
        return self.table.begin(begun, given, model_version=model_version, route=route, tier=tier)

    def _sample(
        self,
        ran: Ran,
        objectives: Objectives,
        standing: Standing,
        arm: ArmKey,
        begun: Begun | None,
        route: str,
        tier: str,
    ) -> None:
        if standing is Standing.NEITHER:
            return
        costs, rollout = self._known.costs, self._known.snapshot.rollouts.get(arm.alias)
        baseline = rollout.baseline if rollout is not None else ran.model_version
        sample = Sample(
            failed=standing is Standing.BAD,
            first=ran.first,
            completed=ran.whole,
            itl=ran.itl,
            cost=_cost(costs.of(ran.model_version, ran.model), ran),
            reference=_cost(costs.of(baseline, ran.model), ran),
            tokens=ran.tokens or ran.rows,
            objectives=judge(objectives, standing, ran),
            scores=ran.scores,
        )
        self._count(begun, arm, sample, ran.model_version, route, tier)

    def _count(
        self, begun: Begun | None, arm: ArmKey, sample: Sample, model_version: str, route: str, tier: str
    ) -> None:
        """Under the arm that it ended on; what began on another one, or on none, begins here as it ends."""
        if begun is None or begun.key != arm or not begun.open:
            begun = self._begin(arm, begun.bucket if begun else None, 0.0, model_version, route, tier)
        if begun is not None:
            self.table.add(begun, sample, self._clock.monotonic())

    def _judge(self, route: str, tier: str, told: Sequence[tuple[str, bool]]) -> None:
        for name, met in told:
            _event(route, tier, name, met).inc()
        self.table.judge(route, tier, told)

    def _baseline_has_workers(self, arm: ArmKey) -> bool:
        rollout = self._known.snapshot.rollouts.get(arm.alias)
        return rollout is not None and self._known.has_workers(rollout.baseline)

    def _tier(self, model_version: str) -> str:
        known = self._known.snapshot.model_versions.get(model_version)
        return tier_of(known) if known is not None else ""


def _cost(price: Price, ran: Ran) -> float:
    if ran.rows:
        return price.exact_rows(ran.rows)
    return price.exact(ran.tokens, ran.prompt_tokens, ran.cached_prompt_tokens)


@lru_cache(maxsize=1024)
def _event(route: str, tier: str, name: str, met: bool) -> Count:
    """Tiers come from the registry, so their number is bounded."""
    return _EVENTS.labels(route, tier, name, "good" if met else "bad")
