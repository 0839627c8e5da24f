"""Requests of a rollout's arms, drawn: what gateways would report, without gateways.

Times are lognormal, lengths come from the simulation's fitted table (prompt and output drawn independently), output
tokens cost four times as much as prompt tokens. Drawn at once for a whole run, so that a look at the first n requests
is cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from services.rollout.policy import (
    ArmEvidence,
    ArmPlan,
    CostMoments,
    Distribution,
    GoodBad,
    Load,
    Moments,
    Plan,
    StepPlan,
    Worker,
    WorkerModel,
)
from simulation.lengths import load

Array = NDArray[np.float64]
_LENGTHS = "azure-conversation"
_SLOW = 0.5  # seconds, the objective "ttft_p95"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How an arm behaves."""

    errors: float = 0.003
    """Share of requests that fail."""
    broken: float = 0.001
    """Share of streams that break off."""
    ttft: float = 0.1
    """Median, seconds."""
    ttft_spread: float = 0.5
    """Standard deviation of its logarithm."""
    itl: float = 0.02
    itl_spread: float = 0.3
    price: float = 1.0
    """A factor."""
    logprob: float = -1.0
    """Mean of an answer's mean log-probability."""


HEALTHY = Behaviour()


class Requests:
    """The requests of one arm, in their order."""

    def __init__(self, behaviour: Behaviour, count: int, rng: np.random.Generator) -> None:
        self._failed = rng.random(count) < behaviour.errors
        self._broken = ~self._failed & (rng.random(count) < behaviour.broken)
        self._ttft = np.log(behaviour.ttft) + behaviour.ttft_spread * rng.standard_normal(count)
        self._itl = np.log(behaviour.itl) + behaviour.itl_spread * rng.standard_normal(count)
        lengths = load()[_LENGTHS]
        prompt, output = (
            np.maximum(1.0, np.round(np.interp(rng.random(count), lengths.probabilities, table)))
            for table in (lengths.prompt, lengths.output)
        )
        self._tokens = prompt + output
        self._cost = behaviour.price * (0.1 * prompt + 0.4 * output)
        self._logprob = np.clip(behaviour.logprob + 0.4 * rng.standard_normal(count), -20.0, 0.0)

    @cached_property
    def _sums(self) -> Array:
        """Cumulative sums, one row each, with a leading 0."""
        served = ~self._failed
        rows = [self._failed, self._broken]
        rows += [served * row for times in (self._ttft, self._itl) for row in (times, times * times)]
        cost, tokens = served * self._cost, served * self._tokens
        rows += [cost, tokens, cost * cost, tokens * tokens, cost * tokens]
        rows += [served * self._logprob, served * self._logprob**2, served & (self._ttft <= np.log(_SLOW))]
        table = np.zeros((len(rows), len(served) + 1))
        np.cumsum(np.array(rows, dtype=float), axis=1, out=table[:, 1:])
        return table

    @cached_property
    def _bins(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        width = np.log(2.0) / 8.0
        return np.floor(self._ttft / width).astype(int), np.floor(self._itl / width).astype(int)

    def evidence(self, count: int) -> ArmEvidence:
        """What the first `count` of them give."""
        failed, broken, t, t2, i, i2, c, k, c2, k2, ck, s, s2, fast = (float(row) for row in self._sums[:, count])
        served = count - round(failed)
        ok = ~self._failed[:count]
        ttft, itl = (_binned(bins[:count][ok]) for bins in self._bins)
        return ArmEvidence(
            count,
            round(failed),
            served,
            served - round(broken),
            Distribution(*ttft, t, t2),
            Distribution(*itl, i, i2),
            CostMoments(served, c, k, c2, k2, ck),
            {"mean_logprob": Moments(served, s, s2)},
            {"availability": GoodBad(served, round(failed)), "ttft_p95": GoodBad(round(fast), served - round(fast))},
        )


def _binned(places: NDArray[np.int64]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if not len(places):
        return (), ()
    first = int(places.min())
    counts = np.bincount(places - first)
    found = np.flatnonzero(counts)
    return tuple((found + first).tolist()), tuple(counts[found].tolist())


def canary_plan(*weights: int, alpha: float = 0.01, **fields: object) -> Plan:
    """A canary of "weir-fast" in steps of these weights (basis points)."""
    arm = ArmPlan("canary", "weir-fast@2", "gold")
    steps = tuple(StepPlan(weight) for weight in weights)
    return Plan("weir-fast", "r1", "weir-fast@1", "gold", (arm,), steps, alpha=alpha, **fields)  # type: ignore[arg-type]


def ready_workers(*versions: str, count: int = 4, pool: str = "gold") -> tuple[Worker, ...]:
    """Workers in two zones that have these versions ready."""
    models = {version: WorkerModel(Load.READY) for version in versions}
    return tuple(Worker(f"worker-{n}", f"zone-{n % 2}", pool, models) for n in range(count))
