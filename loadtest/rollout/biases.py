"""What must not look like a worse version, and what must, in simulated rollouts (`simulated.py`).

Three biases are planted in versions that are as good as their baselines: answers that take longer while failures do
not, few keys, and tenants of very different size. Beside them, faults, and how soon each is found. Each case is also
judged with what gateways tell of ended requests alone ("ended_only"), as if nothing were known of beginnings and keys:
if that were never wrong, the biases would be none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import numpy as np

from loadtest.overload.output import progress
from loadtest.rollout.simulated import Callers, Model, Simulation
from loadtest.rollout_traffic import canary_plan
from services.rollout.policy import Kind, Plan, ShadowPlan

SHADOWED = ShadowPlan(1000)


@dataclass(frozen=True, slots=True)
class Case:
    """A version, its baseline, and who calls them."""

    baseline: Model
    canary: Model
    callers: Callers
    weight: int
    """Of the canary, basis points."""
    seconds: int
    """Looked at every second for a minute, then every five."""


SAME = Model()
STEADY = Model(lasts=30.0, spread=0.1)
HEALTHY = {
    "slower_successes": Case(STEADY, replace(STEADY, lasts=36.0), Callers(rate=100.0), 5000, 90),
    "few_keys": Case(SAME, SAME, Callers(rate=60.0, keys=10, apart=0.3), 5000, 120),
    "unequal_tenants": Case(SAME, SAME, Callers(keys=200, even=False, apart=0.5, errors_apart=1.0), 5000, 120),
}
"""Versions as good as their baselines."""
CLEAN = Model(errors=0.0, lasts=1.0)


def _bad(canary: Model, baseline: Model = CLEAN) -> Case:
    return Case(baseline, canary, Callers(), 1000, 300)


FAULTS = {
    "errors_30pct": _bad(replace(CLEAN, errors=0.3)),
    "errors_30pct_baseline_1pct": _bad(replace(CLEAN, errors=0.3), replace(CLEAN, errors=0.01)),
    "errors_100pct": _bad(replace(CLEAN, errors=1.0)),
    "errors_30pct_answers_of_30s": _bad(replace(CLEAN, errors=0.3, lasts=30.0), replace(CLEAN, lasts=30.0)),
    "hangs_always": _bad(replace(CLEAN, hangs=1.0)),
    "streams_break_20pct": _bad(replace(CLEAN, broken=0.2)),
    "ttft_3x": _bad(replace(CLEAN, ttft=0.3)),
    "itl_2x": _bad(replace(CLEAN, itl=0.04)),
    "logprob_1.5_lower": _bad(replace(CLEAN, logprob=-2.5)),
    "cost_2x": _bad(replace(CLEAN, price=2.0)),
}
"""Versions that are worse, at 10%, and 20 requests per second of 2,000 keys."""
ERRORS_ONLY = ("errors_30pct", "hangs_always")
"""For a quick look."""


def plan_of(case: Case) -> Plan:
    """Three steps behind a shadow phase share alpha; the first is simulated."""
    rest = (case.weight + 1, case.weight + 2)
    return canary_plan(case.weight, *rest, shadow=SHADOWED)


def rolled_back(case: Case, seed: int, *, told: bool) -> float:
    """Seconds until it is; infinite: it is not."""
    looks = [*range(1, min(60, case.seconds) + 1), *range(65, case.seconds + 1, 5)]
    rng = np.random.default_rng([12, seed])
    simulation = Simulation(plan_of(case), case.baseline, case.canary, case.callers, rng, told=told)
    for look, decision in simulation.run(looks):
        if decision.kind is Kind.ROLL_BACK:
            return float(look)
    return math.inf


def times(case: Case, runs: int, pool: ProcessPoolExecutor, *, told: bool = True) -> list[float]:
    """Of so many seeds."""
    return list(pool.map(partial(rolled_back, case, told=told), range(runs)))


def measure(*, healthy: int, bad: int, faults: Sequence[str] = tuple(FAULTS)) -> dict[str, float]:
    """How many of `healthy` versions were rolled back under each bias, and of a fifth of them by ended requests alone;
    the median time to find each fault, of `bad`."""
    some = max(healthy // 5, 1)
    figures = {"simulated_healthy_runs": healthy, "simulated_healthy_runs_ended_only": some, "simulated_bad_runs": bad}
    found: dict[str, float] = dict(figures)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, case in HEALTHY.items():
            for suffix, told, runs in (("", True, healthy), ("_ended_only", False, some)):
                lost = sum(map(math.isfinite, times(case, runs, pool, told=told)))
                found[f"healthy_rollbacks_{name}{suffix}"] = lost
                progress(f"{lost} of {runs} healthy rollouts taken back: {name}{suffix}")
        for name in faults:
            for suffix, told in (("", True), ("_ended_only", False)):
                seconds = found[f"simulated_{name}_s_p50{suffix}"] = median(times(FAULTS[name], bad, pool, told=told))
                progress(f"found after {seconds:g} s at the median: {name}{suffix}")
    return found
