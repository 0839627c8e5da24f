"""The fit, and a whole calibration of an engine whose costs are known: the simulated one."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from libs.clock import SystemClock
from services.worker.calibration import report, workloads
from services.worker.calibration.calibrate import Plan, calibrate, simulate
from services.worker.calibration.fit import FitError, fit, medians, nonnegative_least_squares, relative_errors
from services.worker.calibration.measure import Measurement, MeasurementError, SimulatedStepper, Step
from services.worker.calibration.workloads import Asked, Bounds
from services.worker.config import Settings, SimulatedOptions
from services.worker.engines.catalogue import create
from services.worker.engines.port import Capacity, EngineLoadError
from services.worker.engines.simulated_core import SimulatedCore
from services.worker.engines.simulated_model import SimulatedModel
from services.worker.engines.step_costs import StepCosts, StepWork

COSTS = StepCosts(
    step_base=2e-3,
    step_per_sequence=3e-4,
    step_per_context_token=1e-6,
    step_per_padded_token=2e-6,
    step_per_prompt=5e-4,
    prefill_tokens_per_second=2e4,
    prefill_per_attended_token=1e-7,
)
SIZES = report.Sizes(block_size=16, total_blocks=1024, max_running=32, max_step_tokens=256, max_context=1024)
PLAN = Plan(model="m@1", vocabulary=500, sizes=SIZES, rounds=1, requests=12)


def some_steps(count: int, seed: int = 0) -> list[Step]:
    """Steps of known costs, of the shapes that engines run."""
    rng, steps = random.Random(seed), []
    for _ in range(count):
        decoding, prompts = rng.choice(((rng.randint(1, 32), 0), (0, rng.randint(1, 4)), (rng.randint(1, 24), 1)))
        contexts = [rng.randint(1, 600) for _ in range(decoding)]
        prefilled = sum(rng.randint(8, 128) for _ in range(prompts))
        padded = decoding * max(contexts, default=0)
        work = StepWork(decoding, sum(contexts), padded, prompts, prefilled, prefilled * rng.randint(1, 300))
        steps.append(Step(work, COSTS.seconds(work)))
    return steps


def stepper(costs: StepCosts = COSTS, **changes: object) -> SimulatedStepper:
    sizes = msgspec.structs.asdict(SIZES) | changes
    return SimulatedStepper(SimulatedCore(SimulatedModel(models=("m@1",), **sizes, **asdict(costs))))


def measurement(**changes: object) -> Measurement:
    return Measurement(stepper(**changes), model="m@1", vocabulary=500, rng=random.Random(1))


# ---- the fit ---------------------------------------------------------------------------------------------------------


def test_known_costs_are_found_exactly_without_noise() -> None:
    found = asdict(fit(some_steps(200)))
    assert found == pytest.approx(asdict(COSTS), rel=1e-6)


def test_known_costs_are_found_through_noise_and_steps_that_came_late() -> None:
    rng = random.Random(3)
    noisy = [
        Step(step.work, step.seconds * rng.gauss(1.0, 0.05) * (4.0 if rng.random() < 0.05 else 1.0))
        for step in some_steps(600)
    ]
    found = fit(noisy)
    # What matters is that steps are predicted; two costs that always come together may trade places a little.
    assert float(np.median(relative_errors(found, some_steps(200, seed=9)))) < 0.02
    assert found.step_base == pytest.approx(COSTS.step_base, rel=0.1)
    assert found.prefill_tokens_per_second == pytest.approx(COSTS.prefill_tokens_per_second, rel=0.1)


def test_what_costs_nothing_is_found_to_cost_nothing_and_never_less() -> None:
    free = replace(COSTS, step_per_padded_token=0.0, prefill_tokens_per_second=math.inf)
    rng = random.Random(5)
    steps = [Step(step.work, free.seconds(step.work) * rng.gauss(1.0, 0.02)) for step in some_steps(300)]
    found = fit(steps)
    assert all(value >= 0 for value in asdict(found).values())
    assert found.step_per_padded_token < 2e-7
    assert found.prefill_tokens_per_second > 5e5


@given(
    rows=st.lists(st.tuples(*[st.floats(-4, 4)] * 3), min_size=4, max_size=12),
    target=st.lists(st.floats(-4, 4), min_size=12, max_size=12),
    step=st.tuples(*[st.floats(-0.5, 0.5)] * 3),
)
@settings(deadline=None)
def test_no_other_nonnegative_point_is_nearer(
    rows: list[tuple[float, ...]], target: list[float], step: tuple[float, ...]
) -> None:
    matrix, wanted = np.array(rows), np.array(target[: len(rows)])
    found = nonnegative_least_squares(matrix, wanted)
    assert (found >= 0).all()
    other = np.maximum(found + np.array(step), 0.0)
    assert np.sum((matrix @ found - wanted) ** 2) <= np.sum((matrix @ other - wanted) ** 2) + 1e-6


def test_steps_that_do_not_determine_the_costs_are_refused() -> None:
    with pytest.raises(FitError, match="21 different steps are needed, there are 5"):
        fit(some_steps(5))
    with pytest.raises(FitError, match="different steps are needed"):
        fit(some_steps(1) * 50)
    decodes = [Step(StepWork(n, n * n, n * n + n, 0, 0, 0), 0.1) for n in range(1, 40)]
    with pytest.raises(FitError, match="no step shows step_per_prompt, prefill, attended"):
        fit(decodes)
    with pytest.raises(FitError, match="tell the costs apart"):
        fit([Step(StepWork(n, 2 * n, 3 * n, n, 4 * n, 5 * n), 0.1) for n in range(1, 40)])
    with pytest.raises(FitError, match="must take time"):
        fit([*some_steps(50), Step(StepWork(1, 1, 1, 1, 1, 7), 0.0)])


def test_each_kind_of_work_counts_once_with_its_median_time() -> None:
    one, other = StepWork(1, 9, 9), StepWork(2, 9, 9)
    runs = [[Step(one, 1.0), Step(other, 5.0)], [Step(one, 9.0)], [Step(one, 2.0)]]
    assert medians(runs) == [Step(one, 2.0), Step(other, 5.0)]


# ---- what is run and seen --------------------------------------------------------------------------------------------


def test_the_work_of_every_step_is_seen_from_outside() -> None:
    workload = [Asked(0, 40, 9), Asked(0, 300, 5), Asked(2, 70, 3), Asked(3, 8, 1), Asked(30, 600, 2)]
    run = measurement().run(workload, by_steps=True)
    # The engine charged for the work that it did; the same charge for the work that was seen is the same time.
    for step in run.steps:
        assert COSTS.seconds(step.work) == pytest.approx(step.seconds)
    assert sum(step.work.prefilled for step in run.steps) == 40 + 300 + 70 + 8 + 600
    assert sum(step.work.decoding for step in run.steps) == 8 + 4 + 2 + 0 + 1
    assert run.seconds == pytest.approx(sum(step.seconds for step in run.steps))


def test_first_tokens_are_timed_from_arrival_on_the_clock_of_the_steps() -> None:
    run = measurement().run([Asked(5.0, 16, 1), Asked(0.0, 16, 1)], by_steps=False)
    alone = COSTS.seconds(StepWork(0, 0, 0, 1, 16, 136))
    assert run.first == pytest.approx([alone, alone])
    assert run.seconds == pytest.approx(5.0 + alone)


def test_an_engine_that_refuses_the_workload_is_not_measured() -> None:
    with pytest.raises(MeasurementError, match="the prompt has 2000 tokens"):
        measurement().run([Asked(0, 2000, 1)], by_steps=True)


class Forgetful(SimulatedStepper):
    """Says that it has computed fewer prompt tokens than it has."""

    def capacity(self) -> Capacity:
        told = super().capacity()
        return replace(told, queued_prefill_tokens=told.queued_prefill_tokens // 2)


def test_work_that_nobody_asked_for_is_noticed() -> None:
    watched = Measurement(
        Forgetful(SimulatedCore(SimulatedModel(models=("m@1",)))), model="m@1", vocabulary=500, rng=random.Random(1)
    )
    with pytest.raises(MeasurementError, match="other prompt tokens"):
        watched.run([Asked(0, 16, 2)], by_steps=True)


@pytest.mark.parametrize("context", [96, 300, 4096])
@pytest.mark.parametrize("running", [1, 8, 64])
def test_designed_workloads_keep_to_what_the_engine_takes(context: int, running: int) -> None:
    bounds = Bounds(max_running=running, max_context=context)
    designed = [*workloads.decoding(bounds, 256), *workloads.prefilling(bounds, 64), *workloads.joining(bounds)]
    assert designed
    for asked in (each for workload in designed for each in workload):
        assert min(asked.prompt, asked.output) >= 1
        assert asked.prompt + asked.output <= context
    mixed = workloads.mixed(bounds, count=50, span=3.0, seed=1)
    assert mixed == workloads.mixed(bounds, count=50, span=3.0, seed=1)
    assert all(0 <= asked.at <= 3.0 and bounds.fits(asked) for asked in mixed)


def test_decoding_batches_are_all_there_at_once() -> None:
    for workload in workloads.decoding(Bounds(max_running=32, max_context=1024), 256):
        seen = measurement().run(workload, by_steps=True)
        assert max(step.work.decoding for step in seen.steps) == len(workload)


# ---- the whole ------------------------------------------------------------------------------------------------------


def test_a_calibration_of_the_simulated_engine_finds_its_costs_and_no_error(tmp_path: Path) -> None:
    opened: list[int] = []

    @contextlib.contextmanager
    def open_engine(max_step_tokens: int) -> Iterator[SimulatedStepper]:
        opened.append(max_step_tokens)
        yield stepper(max_step_tokens=max_step_tokens)

    said: list[str] = []
    result = calibrate(open_engine, PLAN, say=said.append)
    assert opened == [64, 512, 256]
    assert said == ["loading and warming up", "round 1 of 1"]
    assert asdict(result.costs) == pytest.approx(asdict(COSTS), rel=1e-5)
    assert set(msgspec.structs.astuple(result.errors)) <= {0.0, -0.0}


def test_an_error_of_the_costs_shows_in_what_they_predict() -> None:
    workload = workloads.mixed(PLAN.bounds, count=10, span=0.5, seed=2)
    slow = replace(COSTS, step_base=2 * COSTS.step_base)
    assert simulate(slow, workload, PLAN).seconds > simulate(COSTS, workload, PLAN).seconds


def calibration() -> report.Calibration:
    source = report.Source(
        engine="torch",
        model="m@1",
        parameters=12,
        weights="float32",
        machine='a "machine" \\ of two cores',
        software="torch",
        threads=1,
        clock="cpu",
        measured="2026-01-31",
    )
    errors = report.Errors(**dict.fromkeys(report.Errors.__struct_fields__, 0.125))
    return report.Calibration(source=source, sizes=SIZES, costs=report.Costs.of(COSTS), errors=errors)


@pytest.mark.parametrize("costs", [COSTS, replace(COSTS, prefill_tokens_per_second=math.inf), StepCosts()])
def test_the_file_is_read_as_it_was_written(tmp_path: Path, costs: StepCosts) -> None:
    written = msgspec.structs.replace(calibration(), costs=report.Costs.of(costs))
    (tmp_path / "c.toml").write_text(report.text(written))
    assert report.read(tmp_path / "c.toml") == written
    assert report.read(tmp_path / "c.toml").costs.step_costs() == costs


@pytest.mark.parametrize(
    ("old", "new"),
    [("step_base = 0.002", "step_base = -1.0"), ("step_base", "step_bias"), ("[costs]", "[costs"), ("0.002", "nan")],
)
def test_a_file_that_says_something_else_is_refused_by_name(tmp_path: Path, old: str, new: str) -> None:
    text = report.text(calibration())
    assert old in text
    (tmp_path / "c.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(report.CalibrationFileError, match=r"c\.toml"):
        report.read(tmp_path / "c.toml")
    with pytest.raises(report.CalibrationFileError, match=r"none\.toml"):
        report.read(tmp_path / "none.toml")


async def test_a_worker_simulates_what_a_file_says(tmp_path: Path) -> None:
    def worker(**simulated: object) -> Settings:
        given = {"service": "worker", "instance": "w", "engine": "simulated", "models": {"m@1": ""}}
        return msgspec.convert({**given, "simulated": simulated}, Settings)

    (tmp_path / "c.toml").write_text(report.text(calibration()))
    engine = create(worker(calibration=str(tmp_path / "c.toml"), step_base=9.0), clock=SystemClock())
    assert engine.info.simulated
    model = engine._model  # type: ignore[attr-defined]
    assert model.seconds(StepWork(1, 2, 3, 4, 5, 6)) == pytest.approx(COSTS.seconds(StepWork(1, 2, 3, 4, 5, 6)))
    with pytest.raises(EngineLoadError, match=r"none\.toml"):
        create(worker(calibration=str(tmp_path / "none.toml")), clock=SystemClock())
    with pytest.raises(EngineLoadError, match="negative"):
        create(worker(step_per_prompt=-1.0), clock=SystemClock())


def test_the_options_that_are_printed_are_settings_of_a_worker() -> None:
    options = report.settings(calibration(), "x.toml")
    named = [option.partition("=")[0].removeprefix("worker.simulated.") for option in options]
    assert named[0] == "calibration"
    assert set(named) <= set(SimulatedOptions.__struct_fields__)
