"""Versions that the simulated engine makes bad on purpose, and what that does to the others: nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.clock import SystemClock
from services.worker.config import Settings, SimulatedFaults, SimulatedOptions
from services.worker.engines.catalogue import create
from services.worker.engines.port import EngineLoadError, FinishReason, SamplingParams, SequenceRequest
from services.worker.engines.simulated_core import SimulatedCore
from services.worker.engines.simulated_model import SimulatedModel
from services.worker.engines.simulated_versions import SOUND, Faults, faults_of, read_files

STEP = 0.01


def core(faults: Faults, **changes) -> SimulatedCore:
    sizes = {"total_blocks": 4096, "max_running": 64, "vocabulary": 500, "step_base": STEP}
    made = SimulatedCore(SimulatedModel(models=("good@1",), **(sizes | changes)))
    made.add_version("bad@1", faults=faults)
    return made


def request(handle: int, model: str, tokens: int = 12) -> SequenceRequest:
    params = SamplingParams(max_tokens=tokens, temperature=0.0)
    return SequenceRequest(handle=handle, model=model, prompt=[7, 8, 9], params=params)


class Run:
    """Everything that came out, with the times of the tokens."""

    def __init__(self, sim: SimulatedCore, *requests: SequenceRequest) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.at: dict[int, list[float]] = {}
        self.finish: dict[int, int] = {}
        self.errors: dict[int, str] = {}
        self.cached: dict[int, int] = {}
        self.now = 0.0
        sim.add(requests)
        while sim.has_work():
            sim.last_step_seconds = sim.plan()
            self.now += sim.last_step_seconds
            output = sim.apply(self.now)
            for handle, tokens, finish in zip(output.handles, output.tokens, output.finish, strict=True):
                self.tokens.setdefault(handle, []).extend(tokens)
                self.at.setdefault(handle, []).extend([self.now] * len(tokens))
                if finish:
                    self.finish[handle] = finish
            assert not self.cached.keys() & output.prompt_tokens_cached.keys()
            self.cached |= output.prompt_tokens_cached
            self.errors |= output.errors
        load = sim.capacity()
        assert (load.free_blocks, load.running, load.queued_prefill_tokens) == (4096, 0, 0)
        assert load.fragmentation == 0.0


def test_versions_without_faults_agree_and_garbled_ones_do_not():
    run = Run(core(SOUND), request(1, "good@1"), request(2, "bad@1"))
    assert run.tokens[1] == run.tokens[2]
    run = Run(core(Faults(garble=True)), request(1, "good@1"), request(2, "bad@1"))
    assert run.tokens[1] != run.tokens[2]
    assert len(run.tokens[2]) == 12
    again = Run(core(Faults(garble=True)), request(2, "bad@1"))
    assert again.tokens[2] == run.tokens[2]


def test_the_share_of_errors_is_the_rate_and_falls_on_the_first_tokens_of_the_bad_version_alone():
    sim = core(Faults(error_rate=0.3))
    run = Run(sim, *(request(handle, "bad@1" if handle % 2 else "good@1") for handle in range(2000)))
    failed = [handle for handle, finish in run.finish.items() if finish == FinishReason.ERROR]
    assert all(handle % 2 for handle in failed)
    assert 230 <= len(failed) <= 370  # 300 expected; five standard deviations are 72
    assert all(len(run.tokens[handle]) < 8 for handle in failed)
    assert run.errors.keys() == set(failed)
    assert all("on purpose" in message for message in run.errors.values())
    assert all((handle in run.cached) == bool(run.tokens[handle]) for handle in run.finish)


def test_a_slow_first_token_waits_by_its_factor_and_holds_up_nobody():
    sound = Run(core(SOUND), request(1, "good@1"), request(2, "bad@1"))
    slow = Run(core(Faults(ttft_factor=3.0)), request(1, "good@1"), request(2, "bad@1"))
    assert slow.at[1] == sound.at[1]
    assert slow.at[2][0] == pytest.approx(3 * sound.at[2][0])
    assert slow.at[2][-1] - slow.at[2][0] == pytest.approx(11 * STEP)
    assert slow.tokens == sound.tokens


@given(factor=st.floats(1.0, 6.0))
@settings(max_examples=30)
def test_slow_tokens_come_by_their_factor_in_the_mean(factor):
    run = Run(core(Faults(itl_factor=factor)), request(1, "good@1", 100), request(2, "bad@1", 100))
    assert run.at[1][-1] - run.at[1][0] == pytest.approx(99 * STEP)
    assert (run.at[2][-1] - run.at[2][0]) / 99 == pytest.approx(factor * STEP, rel=0.03)


def test_without_costs_slowness_has_nothing_to_multiply():
    run = Run(core(Faults(ttft_factor=9.0, itl_factor=9.0), step_base=0.0), request(1, "bad@1"))
    assert len(run.tokens[1]) == 12


@pytest.mark.parametrize(
    "bad", [{"error_rate": 1.5}, {"error_rate": -0.1}, {"ttft_factor": 0.5}, {"itl_factor": float("inf")}, {"speed": 1}]
)
def test_senseless_faults_are_refused_by_name(bad, tmp_path):
    with pytest.raises(EngineLoadError, match=f"simulated.json.*{next(iter(bad))}"):
        faults_of("m@1", str(tmp_path), bad, {})


def test_settings_win_over_the_folder_field_by_field():
    assert faults_of("m@1", "f", {"error_rate": 0.5, "garble": True}, {"error_rate": 0.1}) == Faults(
        error_rate=0.1, garble=True
    )
    assert faults_of("m@1", "f", {"error_rate": 0.5}, {"error_rate": 0.0}) is SOUND


def test_a_folder_says_sizes_and_faults(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 300, "max_position_embeddings": 64, "eos_token_id": [2, 3]}')
    (tmp_path / "simulated.json").write_text('{"itl_factor": 2.0}')
    files = read_files(str(tmp_path))
    assert (files.vocabulary, files.max_context, files.eos_token_ids) == (300, 64, {2, 3})
    assert files.faults == {"itl_factor": 2.0}


async def test_the_settings_make_a_configured_and_a_later_version_bad():
    options = SimulatedOptions(
        versions={"m@1": SimulatedFaults(error_rate=1.0), "m@2": SimulatedFaults(error_rate=1.0)}, vocabulary=500
    )
    chosen = Settings(service="worker", instance="w", models={"m@1": ""}, engine="simulated", simulated=options)
    engine = create(chosen, clock=SystemClock())
    outputs = []
    await engine.start(outputs.append)
    await engine.load("m@2", "")
    await engine.load("m@3", "")
    engine.submit([request(1, "m@1"), request(2, "m@2"), request(3, "m@3")])
    await engine.unload("m@1")
    await engine.unload("m@2")
    await engine.unload("m@3")
    finish = {
        handle: reason
        for output in outputs
        for handle, reason in zip(output.handles, output.finish, strict=True)
        if reason
    }
    assert finish == {1: FinishReason.ERROR, 2: FinishReason.ERROR, 3: FinishReason.LENGTH}
    await engine.stop()
