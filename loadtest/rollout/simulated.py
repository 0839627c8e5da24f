"""Rollouts in simulated time: requests with beginnings, ends and sticky keys go through the gateway's own counts, its
encoding and the controller's, and the real decision is asked as they come.

No process, no network, no clock but the simulation's: what is simulated is how callers and models behave.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from libs.outcomes import BUCKETS, ArmKey, Begun, OutcomeTable, Sample
from loadtest.rollout_traffic import ready_workers
from services.rollout import convert
from services.rollout.policy import Decision, Kind, Phase, Plan, Situation, Stage, State, decide
from services.rollout.policy.evidence import ArmEvidence

WORKERS = ready_workers("weir-fast@1", "weir-fast@2")
_GIVEN = 120.0


@dataclass(frozen=True, slots=True)
class Model:
    """How a version answers."""

    errors: float = 0.01
    """Share of requests that fail."""
    fails_after: float = 0.3
    """Seconds until they do, on average."""
    hangs: float = 0.0
    """Share of requests that never end."""
    broken: float = 0.0
    """Share of streams that break off half-way, which are failures, too."""
    lasts: float = 4.0
    """Median seconds of an answer."""
    spread: float = 0.6
    """Standard deviation of its logarithm."""
    ttft: float = 0.1
    """Median seconds to the first token; its logarithm spreads by 0.5."""
    itl: float = 0.02
    price: float = 1.0
    logprob: float = -1.0


@dataclass(frozen=True, slots=True)
class Callers:
    """Who asks, by sticky keys."""

    rate: float = 20.0
    """Requests per second."""
    keys: int = 2_000
    even: bool = True
    """All keys ask as often; else the n-th most frequent one 1/n as often as the first (Zipf)."""
    apart: float = 0.0
    """How keys differ: standard deviation of the logarithms of their times, each for itself."""
    errors_apart: float = 0.0
    """Likewise of the logarithm of their share of errors."""


class Simulation:
    """One rollout's requests, from its first step on."""

    def __init__(
        self,
        plan: Plan,
        baseline: Model,
        canary: Model,
        callers: Callers,
        rng: np.random.Generator,
        *,
        told: bool = True,
    ) -> None:
        """:param told: gateways tell when requests began, and their keys; else what ended is all that is known."""
        self.plan = plan
        self._models = {"baseline": baseline, "canary": canary}
        self._callers = callers
        self._rng = rng
        self._told = told
        weights = np.ones(callers.keys) if callers.even else 1.0 / np.arange(1, callers.keys + 1)
        self._shares = weights / weights.sum()
        self._place = rng.random(callers.keys)
        self._bucket = rng.integers(0, BUCKETS, callers.keys)
        self._own = np.exp(callers.apart * rng.standard_normal((callers.keys, 3)))
        self._own_errors = np.exp(callers.errors_apart * rng.standard_normal(callers.keys))
        self.table = OutcomeTable()
        self._ends: list[tuple[float, int, Begun, Sample]] = []
        self._count = 0
        self.now = 0.0
        self.state = State(Phase.CANARY, 0, (plan.steps[0].weight,), 1.0)

    def run(self, looks: Sequence[float], *, most: int = 1) -> Iterator[tuple[float, Decision]]:
        """The decision at each of these seconds of each of the first `most` steps; it goes on to the next step at the
        end of the looks, unless it was rolled back."""
        begin = self.now
        for step in range(most):
            self.state = State(Phase.CANARY, step, (self.plan.steps[step].weight,), 1.0)
            for look in looks:
                self._until(begin + look)
                decision = decide(self.plan, self.state, Situation(1.0 + look, self.evidence(), WORKERS))
                yield look, decision
                if decision.kind is Kind.ROLL_BACK:
                    return
            begin = self.now

    def evidence(self) -> dict[Stage, ArmEvidence]:
        """As the controller would have it."""
        self.table.sweep({"r1"}, self.now)
        found = {}
        for told in self.table.arms_since(-1, 1e9 + self.now):
            if told.step == self.state.step:
                (report,) = convert.arm_reports([told])
                evidence = report.evidence
                found[report.place.stage] = evidence if self._told else replace(evidence, cohorts=None, keys={})
        return found

    @property
    def started(self) -> int:
        """Requests of the canary in this step."""
        counts = self.table.arm(self._key("canary"))
        return sum(counts.cohorts.started) if counts is not None else 0

    def _key(self, arm: str) -> ArmKey:
        return ArmKey("weir-fast", "r1", int(Phase.CANARY), self.state.step, arm)

    def _until(self, moment: float) -> None:
        came = self._rng.poisson(self._callers.rate * (moment - self.now))
        for at in np.sort(self._rng.uniform(self.now, moment, came)):
            self._end(float(at))
            self._begin(float(at))
        self._end(moment)
        self.now = moment

    def _end(self, moment: float) -> None:
        while self._ends and self._ends[0][0] <= moment:
            at, _, begun, sample = heapq.heappop(self._ends)
            self.table.add(begun, sample, at)

    def _begin(self, at: float) -> None:
        rng = self._rng
        caller = (
            int(rng.choice(len(self._shares), p=self._shares)) if self._uneven else int(rng.integers(len(self._shares)))
        )
        arm = "canary" if self._place[caller] < self.state.weights[0] / 1e4 else "baseline"
        begun = Begun(self._key(arm), math.floor(1e9 + at), at, int(self._bucket[caller]))
        model = self._models[arm]
        self.table.begin(begun, _GIVEN, model_version=arm, route="generate", tier="fast")
        lasts, sample = self._answer(model, self._own[caller].tolist(), float(self._own_errors[caller]))
        self._count += 1
        if lasts < math.inf:
            heapq.heappush(self._ends, (at + lasts, self._count, begun, sample))

    @property
    def _uneven(self) -> bool:
        return self._shares[0] != self._shares[-1]

    def _answer(self, model: Model, own: Sequence[float], own_errors: float) -> tuple[float, Sample]:
        rng = self._rng
        drawn = rng.random()
        if drawn < model.hangs:
            return math.inf, Sample()
        if drawn < model.hangs + model.errors * own_errors:
            return float(rng.exponential(model.fails_after)), Sample(failed=True)
        normal = rng.standard_normal(4)
        length = math.exp(model.spread * normal[0])
        lasts = model.lasts * length * own[0]
        whole = rng.random() >= model.broken
        cost = model.price * 100.0 * math.exp(0.3 * normal[3])
        return lasts if whole else 0.5 * lasts, Sample(
            failed=not whole,
            first=model.ttft * own[1] * math.exp(0.5 * normal[1]),
            completed=whole,
            itl=model.itl * own[2] * math.exp(0.3 * normal[2]),
            cost=cost,
            tokens=max(1, round(200 * length)),
            reference=cost / model.price,
            scores=(("mean_logprob", model.logprob + 0.4 * float(rng.standard_normal())),),
        )
