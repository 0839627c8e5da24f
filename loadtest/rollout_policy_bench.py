"""How soon the rollout's gates see what is wrong, how often they see what is not there, and what looking costs.

Synthetic requests (`loadtest.rollout_traffic`), the real decision, no processes: the delay is that of the statistics,
from the first request of the canary on. Run: `python -m loadtest.rollout_policy_bench [--runs 200] [--healthy 1000]`.
Prints JSON, one line per case, and its last line is all figures together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace

import numpy as np

from loadtest.figures import percentile
from loadtest.rollout_traffic import HEALTHY, Behaviour, Requests, canary_plan, ready_workers
from services.rollout.policy import (
    DEFAULT_GATES,
    ArmPlan,
    Evidence,
    Gate,
    GateAction,
    Kind,
    Phase,
    Plan,
    ShadowPlan,
    Situation,
    Stage,
    State,
    Verdict,
    decide,
    judge,
)

RATE = 20.0
SHARE = 0.1
PLAN = canary_plan(1000, 2500, 5000, shadow=ShadowPlan(1000))
WORKERS = ready_workers("weir-fast@1", "weir-fast@2")
CLEAN = replace(HEALTHY, errors=0.0, broken=0.0)
BAD = {
    "errors_30pct": (CLEAN, replace(CLEAN, errors=0.3)),
    "errors_30pct_baseline_1pct": (replace(CLEAN, errors=0.01), replace(CLEAN, errors=0.3)),
    "errors_100pct": (CLEAN, replace(CLEAN, errors=1.0)),
    "ttft_3x_spread_0.3": (replace(CLEAN, ttft_spread=0.3), replace(CLEAN, ttft=0.3, ttft_spread=0.3)),
    "ttft_3x_spread_0.5": (CLEAN, replace(CLEAN, ttft=0.3)),
    "ttft_3x_spread_0.8": (replace(CLEAN, ttft_spread=0.8), replace(CLEAN, ttft=0.3, ttft_spread=0.8)),
    "itl_2x": (CLEAN, replace(CLEAN, itl=0.04)),
    "streams_break_20pct": (CLEAN, replace(CLEAN, broken=0.2)),
    "logprob_1.5_lower": (CLEAN, replace(CLEAN, logprob=-2.5)),
    "cost_2x": (CLEAN, replace(CLEAN, price=2.0)),
}


def evidence(phase: Phase, step: int, baseline: Requests, canary: Requests, counts: tuple[int, int]) -> Evidence:
    """Of the first so many requests of each."""
    return {
        Stage(phase, step, "baseline"): baseline.evidence(counts[0]),
        Stage(phase, step, "canary"): canary.evidence(counts[1]),
    }


def detect(baseline: Behaviour, canary: Behaviour, rng: np.random.Generator, longest: int = 180) -> tuple[float, int]:
    """Seconds and requests of the canary until it is rolled back, at a look a second; infinite when it is not."""
    most = round(2 * RATE * longest)
    base, bad = Requests(baseline, most, rng), Requests(canary, most, rng)
    state = State(Phase.CANARY, 0, (1000,), 1.0)
    theirs = ours = 0
    for second in range(1, longest + 1):
        came = rng.poisson(RATE)
        mine = rng.binomial(came, SHARE)
        theirs, ours = theirs + came - mine, ours + mine
        if not theirs or not ours:
            continue
        seen = evidence(Phase.CANARY, 0, base, bad, (theirs, ours))
        if decide(PLAN, state, Situation(1.0 + second, seen, WORKERS)).kind is Kind.ROLL_BACK:
            return float(second), ours
    return float("inf"), ours


def healthy(runs: int, rng: np.random.Generator) -> dict[str, float]:
    """Whole rollouts of a candidate like the baseline: three steps, a look a second for the first minute, then every
    ten seconds up to ten minutes."""
    backs = holds = 0
    looks = [*range(1, 61), *range(70, 601, 10)]
    for _ in range(runs):
        outcome = Kind.WAIT
        for step, share in enumerate((0.1, 0.25, 0.5)):
            outcome = max(outcome, _one_step(step, share, looks, rng), key=_worse)
            if outcome is Kind.ROLL_BACK:
                break
        backs += outcome is Kind.ROLL_BACK
        holds += outcome is Kind.HOLD
    return {"rollouts": runs, "rolled_back": backs, "held_by_a_breach": holds}


def _worse(kind: Kind) -> int:
    return {Kind.ROLL_BACK: 2, Kind.HOLD: 1}.get(kind, 0)


def _one_step(step: int, share: float, looks: list[int], rng: np.random.Generator) -> Kind:
    most = round(RATE * looks[-1] * 1.2)
    base, same = Requests(HEALTHY, most, rng), Requests(HEALTHY, most, rng)
    state = State(Phase.CANARY, step, (round(10_000 * share),), 1.0)
    found = Kind.WAIT
    for second in looks:
        counts = (round(RATE * second * (1 - share)), round(RATE * second * share))
        if not counts[1]:
            continue
        for status in judge(PLAN, state, Situation(1.0, evidence(Phase.CANARY, step, base, same, counts))):
            if status.verdict is Verdict.BREACHED:
                kind = Kind.ROLL_BACK if status.gate.on_breach is GateAction.ROLL_BACK else Kind.HOLD
                found = max(found, kind, key=_worse)
        if found is Kind.ROLL_BACK:
            break
    return found


def cost_samples(
    price: float, tolerance: float, wanted: Verdict, share: float, rng: np.random.Generator, most: int = 400_000
) -> int:
    """Requests of the canary until the gate on cost per 1,000 tokens says so, at looks 5 percent apart; else `most`."""
    plan = canary_plan(round(10_000 * share), gates=(*DEFAULT_GATES[:-1], Gate("cost_per_1k_tokens", tolerance)))
    state = State(Phase.CANARY, 0, (1000,), 1.0)
    base = Requests(HEALTHY, round(min(most * (1 - share) / share, 4 * most)), rng)
    dear = Requests(replace(HEALTHY, price=price), most, rng)
    count = 10
    while count < most:
        theirs = min(round(count * (1 - share) / share), 4 * most)
        seen = evidence(Phase.CANARY, 0, base, dear, (theirs, count))
        if judge(plan, state, Situation(1.0, seen))[-1].verdict is wanted:
            return count
        count = max(count + 1, round(count * 1.05))
    return most


def evaluation_ms(rng: np.random.Generator) -> float:
    """CPU of one decision: baseline and two arms, 12 gates, 1,000 and 9,000 requests; the median of 50."""
    gates = (*DEFAULT_GATES, Gate("itl_p95", 0.2), Gate("cost_per_request", 0.2))
    arms = (ArmPlan("a", "weir-fast@2", "gold", 1000), ArmPlan("b", "weir-fast@3", "gold", 1000))
    plan = Plan("weir-fast", "r1", "weir-fast@1", "gold", arms, gates=gates)
    state = State(Phase.EXPERIMENT, 0, (1000, 1000), 1.0)
    seen = {
        Stage(Phase.EXPERIMENT, 0, name): Requests(HEALTHY, count, rng).evidence(count)
        for name, count in (("baseline", 9000), ("a", 1000), ("b", 1000))
    }
    workers = ready_workers("weir-fast@1", "weir-fast@2", "weir-fast@3")
    spans = []
    for _ in range(50):
        started = time.process_time_ns()
        decide(plan, state, Situation(2.0, seen, workers))
        spans.append((time.process_time_ns() - started) / 1e6)
    return statistics.median(spans)


def _say(figures: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--healthy", type=int, default=1000)
    options = parser.parse_args()
    rng = np.random.default_rng(20)
    figures: dict[str, object] = {"evaluation_ms": round(evaluation_ms(rng), 3)}
    for name, (baseline, canary) in BAD.items():
        found = [detect(baseline, canary, rng) for _ in range(options.runs)]
        figures[name] = {
            "seconds_p50": percentile([seconds for seconds, _ in found], 0.5),
            "seconds_p90": percentile([seconds for seconds, _ in found], 0.9),
            "samples_p50": percentile([float(count) for _, count in found], 0.5),
        }
        _say({name: figures[name]})
    for name, price, tolerance, wanted in (
        ("cost_2x_breach", 2.0, 0.25, Verdict.BREACHED),
        ("cost_3pct_breach_tolerance_0", 1.03, 0.0, Verdict.BREACHED),
        ("cost_3pct_breach_tolerance_1pct", 1.03, 0.01, Verdict.BREACHED),
        ("cost_same_holds_tolerance_2pct", 1.0, 0.02, Verdict.HOLDS),
        ("cost_same_holds_tolerance_5pct", 1.0, 0.05, Verdict.HOLDS),
    ):
        for share in (0.1, 0.5):
            counts = [cost_samples(price, tolerance, wanted, share, rng) for _ in range(9)]
            case = f"{name}_{round(100 * share)}pct_canary"
            figures[case] = statistics.median(counts)
            _say({case: figures[case]})
    figures["healthy"] = healthy(options.healthy, rng)
    _say(figures)


if __name__ == "__main__":
    main()
