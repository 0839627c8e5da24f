"""The calibration: measure designed workloads, fit, and judge the fit on a mixed workload that it has not seen."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field

import numpy as np

from services.worker.calibration import workloads
from services.worker.calibration.fit import fit, medians, relative_errors
from services.worker.calibration.measure import Measurement, Run, SimulatedStepper, Step, Stepper
from services.worker.calibration.report import Errors, Sizes
from services.worker.calibration.workloads import Asked, Bounds
from services.worker.engines.simulated_core import SimulatedCore
from services.worker.engines.simulated_model import SimulatedModel
from services.worker.engines.step_costs import StepCosts

_MODEL = "calibrated@1"
_BUSY = 0.7
"""The mixed workload arrives within this share of the time that it takes when all of it is there at once: batches grow
and shrink, and the engine is never idle for long."""

OpenEngine = Callable[[int], AbstractContextManager[Stepper]]
"""Opens a loaded engine whose steps compute at most so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run: `rounds`, after one that only warms up; a mixed workload of `requests` requests judges the fit."""

    model: str  # the version that the engine serves
    vocabulary: int
    sizes: Sizes
    rounds: int = 3
    requests: int = 32
    seed: int = 1

    @property
    def bounds(self) -> Bounds:
        """What the engine allows."""
        return Bounds(max_running=self.sizes.max_running, max_context=self.sizes.max_context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The costs, how wrong they are, and the steps that were fitted."""

    costs: StepCosts
    errors: Errors
    steps: list[Step] = field(repr=False)


def calibrate(open_engine: OpenEngine, plan: Plan, *, say: Callable[[str], None] = lambda _: None) -> Result:
    """Measure, fit, judge. `say` hears what is under way.

    Each round runs everything once, the judging workload too: when the machine is slower for a while, all feel it.

    :raises MeasurementError: the engine does not run a workload.
    :raises FitError: its steps do not determine the costs.
    """
    most = plan.sizes.max_step_tokens
    # Other budgets than the usual one show chunks of other sizes; the usual one comes last.
    budgets = [*sorted({max(plan.sizes.max_running, 64), 2 * most} - {most}), most]
    taken: list[list[Step]] = []
    runs: list[Run] = []
    with ExitStack() as stack:
        say("loading and warming up")
        benches = [
            (_measurement(stack.enter_context(open_engine(each)), plan), _designed(plan, each)) for each in budgets
        ]
        usual = benches[-1][0]
        _measure(benches)
        judge: list[Asked] = []
        for number in range(1, plan.rounds + 1):
            say(f"round {number} of {plan.rounds}")
            taken += _measure(benches)
            judge = judge or _mixed(fit(medians(taken)), plan)
            runs.append(usual.run(judge, by_steps=False))
    steps = medians(taken)
    costs = fit(steps)
    return Result(costs=costs, errors=_errors(costs, steps, runs, simulate(costs, judge, plan)), steps=steps)


def simulate(costs: StepCosts, workload: Sequence[Asked], plan: Plan) -> Run:
    """The workload on a simulated engine of these costs; takes no time."""
    sizes = plan.sizes
    core = SimulatedCore(
        SimulatedModel(
            models=(_MODEL,),
            block_size=sizes.block_size,
            total_blocks=sizes.total_blocks,
            max_running=sizes.max_running,
            max_context=sizes.max_context,
            max_step_tokens=sizes.max_step_tokens,
            **asdict(costs),
        )
    )
    measurement = Measurement(SimulatedStepper(core), model=_MODEL, vocabulary=4096, rng=random.Random(plan.seed))
    return measurement.run(workload, by_steps=False)


def _measurement(stepper: Stepper, plan: Plan) -> Measurement:
    return Measurement(stepper, model=plan.model, vocabulary=plan.vocabulary, rng=random.Random(plan.seed))


def _designed(plan: Plan, max_step_tokens: int) -> list[list[Asked]]:
    """What an engine of this budget runs: prompts on each, the rest on the usual one."""
    prompts = list(workloads.prefilling(plan.bounds, max_step_tokens))
    if max_step_tokens != plan.sizes.max_step_tokens:
        return prompts
    return [*workloads.decoding(plan.bounds, max_step_tokens), *prompts, *workloads.joining(plan.bounds)]


def _measure(benches: Sequence[tuple[Measurement, Sequence[Sequence[Asked]]]]) -> list[list[Step]]:
    return [bench.run(workload, by_steps=True).steps for bench, designed in benches for workload in designed]


def _mixed(costs: StepCosts, plan: Plan) -> list[Asked]:
    at_once = workloads.mixed(plan.bounds, count=plan.requests, span=0.0, seed=plan.seed)
    span = _BUSY * simulate(costs, at_once, plan).seconds
    return workloads.mixed(plan.bounds, count=plan.requests, span=span, seed=plan.seed)


def _errors(costs: StepCosts, fitted: Sequence[Step], runs: Sequence[Run], simulated: Run) -> Errors:
    own = relative_errors(costs, fitted)
    unseen = np.concatenate([relative_errors(costs, run.steps) for run in runs])
    totals = np.array([run.seconds for run in runs])

    def off(simulated: float, measured: Sequence[float]) -> float:
        middle = float(np.median(measured))
        return round(simulated / middle - 1.0, 4)

    def first(run: Run, percentile: float) -> float:
        return float(np.percentile(run.first, percentile))

    return Errors(
        fit_median=round(float(np.median(own)), 4),
        fit_p90=round(float(np.percentile(own, 90)), 4),
        step_median=round(float(np.median(unseen)), 4),
        step_p90=round(float(np.percentile(unseen, 90)), 4),
        ttft_p50=off(first(simulated, 50), [first(run, 50) for run in runs]),
        ttft_p90=off(first(simulated, 90), [first(run, 90) for run in runs]),
        total=off(simulated.seconds, [run.seconds for run in runs]),
        repeat_total=round(float((totals.max() - totals.min()) / np.median(totals)), 4),
    )
