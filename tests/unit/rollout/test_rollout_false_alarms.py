"""How often gates are wrong, and how soon they are right: by simulation, with seeds.

`loadtest.rollout_policy_bench` runs the same at greater length and prints figures.
"""

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from loadtest.rollout_policy_bench import BAD, HEALTHY, cost_samples, detect, evidence
from loadtest.rollout_traffic import Array, Behaviour, Requests, canary_plan
from services.rollout.policy import Gate, Phase, Situation, State, Verdict, judge, means
from services.rollout.policy.intervals import Level
from services.rollout.policy.means import Estimate

# Sensible tolerances make false alarms so rare that no test would meet one. Without any, a candidate like the baseline
# is on the edge of what a breach is.
STRICT = tuple(
    Gate(metric)
    for metric in (
        "error_rate",
        "stream_completion",
        "ttft",
        "ttft_p95",
        "itl",
        "cost_per_1k_tokens",
        "score:mean_logprob",
    )
)
ALPHA = 0.1
LOOKS = (10, 12, 15, 19, 24, 30, 38, 50, 70, 100, 150, 250, 400, 700)


def ever_breached(behaviour: Behaviour, share: float, rng: np.random.Generator) -> set[str]:
    plan = canary_plan(1000, gates=STRICT, alpha=ALPHA)
    state = State(Phase.CANARY, 0, (1000,), 1.0)
    ratio = (1.0 - share) / share
    base, same = Requests(behaviour, round(LOOKS[-1] * ratio), rng), Requests(behaviour, LOOKS[-1], rng)
    found: set[str] = set()
    for count in LOOKS:
        seen = evidence(Phase.CANARY, 0, base, same, (round(count * ratio), count))
        found |= {s.gate.metric for s in judge(plan, state, Situation(1.0, seen)) if s.verdict is Verdict.BREACHED}
    return found


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_candidates_like_the_baseline_are_breached_as_rarely_as_alpha_says(share: float) -> None:
    rng = np.random.default_rng(11)
    spread = replace(HEALTHY, errors=0.02, broken=0.01, ttft_spread=0.8)
    alarms = [ever_breached(spread, share, rng) for _ in range(250)]
    # A quarter of what is allowed: the division among gates and the joint limits are on the safe side. A test whose
    # alpha was ten times too great would give 8 percent here.
    assert sum(1 for found in alarms if found) <= ALPHA / 4 * len(alarms)


SHAPES: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "normal": lambda rng, n: rng.normal(0.0, 0.5, n),
    "bimodal by cache hits": lambda rng, n: rng.normal(0.0, 0.2, n) + 2.3 * (rng.random(n) > 0.7),
    "one in thirty far slower": lambda rng, n: rng.normal(0.0, 0.3, n) + 3.0 * (rng.random(n) < 0.03),
    "long tail": lambda rng, n: rng.exponential(0.7, n),
    "exponential times": lambda rng, n: np.log(rng.exponential(1.0, n) + 1e-3),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ratio", [1, 9])
def test_means_of_times_give_few_false_alarms_whatever_the_shape(shape: str, ratio: int) -> None:
    rng, level, alarms = np.random.default_rng(16), Level.of(0.05, 0.05), 0
    for _ in range(600):
        ours, theirs = SHAPES[shape](rng, LOOKS[-1]), SHAPES[shape](rng, ratio * LOOKS[-1])
        sums = [np.cumsum([logs, logs * logs], axis=1) for logs in (ours, theirs)]
        looks = (
            (n, [Estimate.of(k, *of[:, k - 1]) for k, of in zip((n, ratio * n), sums, strict=True)]) for n in LOOKS
        )
        alarms += any(means.difference(*both, level, least_spread=0.05).low > 0.0 for _, both in looks)
    assert alarms <= 0.05 * 600


def test_what_is_worse_than_tolerated_is_shown_by_each_gate() -> None:
    rng = np.random.default_rng(12)
    worse = Behaviour(errors=0.2, broken=0.2, ttft=0.25, itl=0.05, price=1.5, logprob=-2.0)
    plan = canary_plan(1000, gates=STRICT)
    seen = evidence(Phase.CANARY, 0, Requests(HEALTHY, 2700, rng), Requests(worse, 300, rng), (2700, 300))
    found = judge(plan, State(Phase.CANARY, 0, (1000,), 1.0), Situation(1.0, seen))
    assert [status.gate.metric for status in found if status.verdict is not Verdict.BREACHED] == []


def test_what_is_better_holds() -> None:
    rng = np.random.default_rng(13)
    better = Behaviour(errors=0.0, broken=0.0, ttft=0.05, itl=0.01, price=0.5, logprob=-0.5)
    base = Behaviour(errors=0.05, broken=0.05)
    seen = evidence(Phase.CANARY, 0, Requests(base, 27_000, rng), Requests(better, 3000, rng), (27_000, 3000))
    found = judge(canary_plan(1000, gates=STRICT), State(Phase.CANARY, 0, (1000,), 1.0), Situation(1.0, seen))
    assert [status.gate.metric for status in found if status.verdict is not Verdict.HOLDS] == []


@pytest.mark.parametrize("case", ["errors_30pct", "errors_30pct_baseline_1pct", "errors_100pct", "ttft_3x_spread_0.8"])
def test_a_bad_canary_is_rolled_back_within_fifteen_seconds_at_the_median(case: str) -> None:
    rng = np.random.default_rng(14)
    baseline, canary = BAD[case]
    found = [detect(baseline, canary, rng, longest=60)[0] for _ in range(21)]
    assert median(found) <= 15.0


def test_a_dearer_candidate_is_found_and_its_sample_size_told() -> None:
    rng = np.random.default_rng(15)
    twice = [cost_samples(2.0, 0.25, Verdict.BREACHED, 0.1, rng, most=1000) for _ in range(5)]
    slightly = cost_samples(1.03, 0.01, Verdict.BREACHED, 0.1, rng, most=40_000)
    assert max(twice) <= 60
    assert 1000 < slightly < 30_000
