"""Turns ended requests into counts. Called once per request, at its end; nothing here waits or fails.

What is under no rollout costs its objectives' counts alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.rollouts import is_live
from libs.routing import Route, RouteRequest
from services.gateway import metrics
from services.gateway.catalog import Catalog
from services.gateway.outcomes.cohorts import BUCKETS, Begun
from services.gateway.outcomes.counts import Sample
from services.gateway.outcomes.table import OutcomeTable
from services.gateway.policy.events import End
from services.gateway.policy.finals import ArmKey, FinalAnswer
from services.gateway.policy.objectives import AVAILABILITY, WHOLE, Objectives, judge
from services.gateway.policy.standing import NOBODY, Standing, of_end, of_refusal

MEAN_LOGPROB = "mean_logprob"


class Outcomes:
    """One per process."""

    def __init__(self, catalog: Catalog, *, clock: Clock) -> None:
        self.table = OutcomeTable()
        self._catalog = catalog
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
        bucket = self._catalog.key_bucket(arm, asked, BUCKETS) if asked is not None else None
        begun = Begun(arm, math.floor(self._clock.time()), self._clock.monotonic(), bucket)
        return self.table.begin(begun, given, model_version=model_version, route=route, tier=tier)

    def over(self, begun: Begun | None) -> None:
        """It is over and says nothing of its arm; nothing if it counted before."""
        self.table.end(begun)

    def ended(
        self,
        *,
        route: str,
        tier: str,
        end: End,
        error: WeirError | None,
        given: float,
        first: float,
        longest: int,
        model_version: str,
        model: str,
        arm: ArmKey | None,
        mean_logprob: float | None = None,
        begun: Begun | None = None,
    ) -> None:
        """A request that ran is over.

        :param error: what ended it, if a fault of this gateway's side did.
        :param given: seconds from its arrival to its deadline.
        :param first: seconds to its first token; 0: there was none.
        :param longest: tokens of its longest choice.
        :param model: as the caller named it, for its cost.
        :param arm: where it counts; None outside rollouts.
        :param begun: what `began` gave.
        """
        objectives = self._catalog.objectives(route, tier)
        general, of_arm = of_end(end.finish, error, end.error_reason, patient=given >= objectives.patience)
        told = _judge(objectives, general, end, first, longest)
        self._judged(route, tier, told)
        if arm is not None and of_arm is not Standing.NEITHER:
            sample = self._sample(objectives, of_arm, end, first, longest, model_version, model, mean_logprob, arm)
            self._count(begun, arm, sample, model_version, route, tier)
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
    ) -> None:
        """A request was refused before it ran. `asked` is what it would have got under the name `model`; None when that
        is nothing. `begun` is what `began` gave."""
        if asked is not None:
            self._refused(route, model, asked, error, given, over_quota, begun)
        self.over(begun)

    def _refused(
        self,
        route: str,
        model: str,
        asked: Route,
        error: WeirError,
        given: float,
        over_quota: bool,
        begun: Begun | None,
    ) -> None:
        objectives = self._catalog.objectives(route, asked.tier)
        general, of_arm = of_refusal(error, patient=given >= objectives.patience, over_quota=over_quota)
        if general is Standing.NEITHER:
            return
        told = [(AVAILABILITY, False)] if objectives.availability else []
        self._judged(route, asked.tier, told)
        arm = self._catalog.arm_key(model, asked) if of_arm is Standing.BAD else None
        if arm is not None and (error.limit != NOBODY or self._baseline_has_workers(arm)):
            sample = Sample(failed=True, objectives=told)
            self._count(begun, arm, sample, asked.model_version, route, asked.tier)

    def _count(
        self, begun: Begun | None, arm: ArmKey, sample: Sample, model_version: str, route: str, tier: str
    ) -> None:
        """Under the arm that it ended on; what began on another one, or on none, begins here as it ends."""
        if begun is None or begun.key != arm or not begun.open:
            now = Begun(arm, math.floor(self._clock.time()), self._clock.monotonic(), begun.bucket if begun else None)
            begun = self.table.begin(now, 0.0, model_version=model_version, route=route, tier=tier)
        if begun is not None:
            self.table.add(begun, sample, self._clock.monotonic())

    def mirror_began(self, arm: ArmKey, *, given: float, model_version: str, route: str) -> Begun | None:
        """A mirrored copy is about to be made; see `began`."""
        tier = self._tier(model_version)
        return self.began(arm, None, given=given, model_version=model_version, route=route, tier=tier)

    def mirrored(self, arm: ArmKey, answer: FinalAnswer, *, route: str, model: str, begun: Begun | None = None) -> None:
        """A mirrored copy is over, however it ended: it counts under its arm, and against no objective of users.

        :param arm: `Mirrored.copy_arm`.
        :param route: the user's, such as "generate".
        :param model: as the user named it, for its cost.
        """
        tier = self._tier(answer.model_version)
        objectives = self._catalog.objectives(route, tier)
        _, of_arm = of_end(answer.end.finish, None, answer.end.error_reason, patient=True)
        if of_arm is Standing.NEITHER:
            return
        longest = max((len(choice.tokens) for choice in answer.choices), default=0)
        mean = mean_logprob(answer)
        first, version = answer.first_after, answer.model_version
        sample = self._sample(objectives, of_arm, answer.end, first, longest, version, model, mean, arm)
        self._count(begun, arm, sample, version, route, tier)

    def mirror_failed(
        self, arm: ArmKey, error: WeirError, *, model_version: str, route: str, begun: Begun | None = None
    ) -> None:
        """A mirrored copy failed or was refused: counts if that is its arm's fault (a lost worker, a failed engine, a
        fault of ours); having found no place is what such copies are for."""
        if error.reason in (Reason.WORKER_LOST, Reason.ENGINE_ERROR, Reason.INTERNAL):
            tier = self._tier(model_version)
            self._count(begun, arm, Sample(failed=True), model_version, route, tier)

    def score(self, arm: ArmKey, metric: str, value: float) -> None:
        """Add a score to an arm that has counts already."""
        self.table.score(arm, metric, value)

    def sweep(self) -> None:
        """Forget ended rollouts; called about twice a second."""
        live = {rollout.id for rollout in self._catalog.snapshot.rollouts.values() if is_live(rollout)}
        self.table.sweep(live, self._clock.monotonic())
        metrics.ROLLOUT_ARMS.set(len(self.table))

    def _baseline_has_workers(self, arm: ArmKey) -> bool:
        rollout = self._catalog.snapshot.rollouts.get(arm.alias)
        return rollout is not None and self._catalog.has_workers(rollout.baseline)

    def _tier(self, model_version: str) -> str:
        known = self._catalog.snapshot.model_versions.get(model_version)
        return known.tier if known is not None else ""

    def _judged(self, route: str, tier: str, told: Sequence[tuple[str, bool]]) -> None:
        for name, met in told:
            metrics.slo_event(route, tier, name, met).inc()
        self.table.judge(route, tier, told)

    def _sample(
        self,
        objectives: Objectives,
        standing: Standing,
        end: End,
        first: float,
        longest: int,
        model_version: str,
        model: str,
        mean: float | None,
        arm: ArmKey,
    ) -> Sample:
        usage, decode = end.usage, end.breakdown.decode
        tokens = usage.prompt_tokens + usage.completion_tokens
        cached = usage.cached_prompt_tokens
        costs, rollout = self._catalog.costs, self._catalog.snapshot.rollouts.get(arm.alias)
        baseline = rollout.baseline if rollout is not None else model_version
        return Sample(
            failed=standing is Standing.BAD,
            first=first,
            completed=end.finish in WHOLE,
            itl=decode / (longest - 1) if longest > 1 and decode > 0 else 0.0,
            cost=costs.of(model_version, model).exact(tokens, usage.prompt_tokens, cached),
            reference=costs.of(baseline, model).exact(tokens, usage.prompt_tokens, cached),
            tokens=tokens,
            objectives=_judge(objectives, standing, end, first, longest),
            scores=() if mean is None else ((MEAN_LOGPROB, mean),),
        )


def mean_logprob(answer: FinalAnswer) -> float | None:
    """The mean log-probability of an answer's own tokens; None when it has none, when the engine told none, or when
    two versions gave them."""
    scores = [logprob for choice in answer.choices for logprob in choice.logprobs]
    if not scores or answer.moved or any(choice.tokens and not choice.logprobs for choice in answer.choices):
        return None
    return sum(scores) / len(scores)


def _judge(objectives: Objectives, standing: Standing, end: End, first: float, longest: int) -> list[tuple[str, bool]]:
    breakdown = end.breakdown
    return judge(
        objectives,
        standing=standing,
        finish=end.finish,
        first=first,
        decode=breakdown.decode,
        longest=longest,
        total=breakdown.total,
    )
