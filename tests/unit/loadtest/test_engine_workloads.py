"""The engine benchmark: its workloads, its child processes, its client of the engine port, its arithmetic."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from libs.clock import SystemClock
from loadtest.engine import checkpoints, ours, report, steps, workloads
from loadtest.engine.child import Contestant, ContestantError
from services.worker.engines.port import StepOutput
from services.worker.engines.simulated import SimulatedEngine
from services.worker.engines.simulated_core import SimulatedCore
from services.worker.engines.simulated_model import SimulatedModel

CHILD = """
from loadtest.engine import child
out = child.answers()
print("a library that prints")
child.serve(out, lambda order: {"twice": 2 * order["number"]})
"""


# --- workloads ---


def test_lengths_are_those_of_the_workload_and_the_same_in_every_repeat() -> None:
    first, second = (workloads.workload("a", repeat, vocabulary=4096) for repeat in (1, 2))
    assert len(first) == 64
    assert 100 < statistics.median(len(item.prompt) for item in first) < 165
    assert 50 < statistics.median(item.output for item in first) < 82
    assert max(len(item.prompt) for item in first) <= 512
    assert max(item.output for item in first) <= 256
    assert [(len(item.prompt), item.output) for item in first] == [(len(item.prompt), item.output) for item in second]


def test_a_repeat_shares_no_beginning_with_another_nor_its_requests_with_each_other() -> None:
    prompts = [item.prompt for repeat in (1, 2) for item in workloads.workload("a", repeat, vocabulary=4096)]
    assert len({tuple(prompt[:4]) for prompt in prompts}) == len(prompts)
    assert prompts == [item.prompt for repeat in (1, 2) for item in workloads.workload("a", repeat, vocabulary=4096)]


def test_b_is_a_behind_one_common_prefix_that_differs_between_repeats() -> None:
    plain = workloads.workload("a", 1, vocabulary=4096)
    items, others = (workloads.workload("b", repeat, vocabulary=4096) for repeat in (1, 2))
    assert {tuple(item.prompt[:256]) for item in items} != {tuple(item.prompt[:256]) for item in others}
    assert len({tuple(item.prompt[:256]) for item in items}) == 1
    assert [len(item.prompt) - 256 for item in items] == [len(item.prompt) for item in plain]


def test_c_is_one_stream() -> None:
    [item] = workloads.workload("c", 1, vocabulary=32000)
    assert (len(item.prompt), item.output) == (128, 128)
    assert all(8 <= token < 32000 for token in item.prompt)


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(ValueError, match="'d'"):
        workloads.workload("d", 1, vocabulary=4096)


SIZES = [
    ("t", 5.5e6, 6144), ("s", 107e6, 24576), ("qwen3", 107e6, 24576), ("gemma2", 103e6, 49152), ("phi3", 107e6, 24576),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters", "kv_bytes"), SIZES)
def test_checkpoints_have_their_sizes(name: str, parameters: float, kv_bytes: int) -> None:
    shape = checkpoints.SHAPES[name]
    width, heads, kv_heads = shape["hidden_size"], shape["num_attention_heads"], shape["num_key_value_heads"]
    attention = 2 * width * (heads + kv_heads) * shape.get("head_dim", width // heads)
    layer = attention + 3 * width * shape["intermediate_size"]
    assert shape["num_hidden_layers"] * layer + shape["vocab_size"] * width == pytest.approx(parameters, rel=0.03)
    assert checkpoints.kv_bytes_per_token(name) == kv_bytes


# --- child processes ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bench_child.py").write_text(CHILD)
    return tmp_path


def contestant(folder: Path) -> Contestant:
    return Contestant("bench_child", environment={"PYTHONPATH": str(folder)}, log=folder / "child.log")


def test_a_child_answers_each_order_and_keeps_what_is_printed_out_of_its_answers(folder: Path) -> None:
    with contestant(folder) as child:
        assert [child.ask({"number": number}) for number in (1, 21)] == [{"twice": 2}, {"twice": 42}]
    assert (folder / "child.log").read_text() == "a library that prints\n"


def test_a_child_that_fails_is_reported_with_what_it_said(folder: Path) -> None:
    with contestant(folder) as child, pytest.raises(ContestantError, match="KeyError: 'number'"):
        child.ask({"other": 1})


def test_a_child_that_does_not_start_is_reported(folder: Path) -> None:
    (folder / "bench_child.py").write_text("raise SystemExit('no such checkpoint')")
    with pytest.raises(ContestantError, match="no such checkpoint"):
        contestant(folder)


# --- the client of the engine port ---


def engine(**sizes: Any) -> SimulatedEngine:
    return SimulatedEngine(SimulatedModel(models=(ours.MODEL,), **sizes), clock=SystemClock())


async def test_a_run_counts_tokens_first_tokens_and_memory() -> None:
    simulated = engine(total_blocks=4096, block_size=16)
    client = ours.Client(simulated)
    await simulated.start(client.on_step)
    items = workloads.batch(1, vocabulary=4096, requests=8, shared=32)
    answer = await ours.run(simulated, client, {"items": workloads.to_json(items), "warm_prefix": 32})
    await simulated.stop()
    assert answer["output_tokens"] == sum(item.output for item in items)
    assert answer["prompt_tokens"] == sum(len(item.prompt) for item in items)
    assert len(answer["ttft"]) == 8
    assert 0 < max(answer["ttft"]) <= answer["seconds"]
    assert 0 < answer["blocks_peak"] <= sum(-(-(len(item.prompt) + item.output) // 16) for item in items)


async def test_a_run_that_the_engine_refuses_is_an_error() -> None:
    simulated = engine(max_context=16)
    client = ours.Client(simulated)
    await simulated.start(client.on_step)
    with pytest.raises(RuntimeError, match="context"):
        await ours.run(simulated, client, {"items": [{"prompt": [9] * 20, "output": 4}]})
    await simulated.stop()


async def test_interference_sees_the_gaps_of_the_decoders_while_the_long_prompt_is_computed() -> None:
    simulated = engine(max_step_tokens=32)
    client = ours.Client(simulated)
    await simulated.start(client.on_step)
    order = {
        "repeat": 1,
        "vocabulary": 4096,
        "decoders": 2,
        "decoder_prompt": 8,
        "decoder_output": 100,
        "settle": 5,
        "prompt": 320,
    }
    answer = await ours.interference(simulated, client, order)
    await simulated.stop()
    # 320 tokens are ten steps of 32; the last brings the long prompt's first token. Each decoder has one gap a step,
    # and one step may have been under way when the prompt came.
    assert len(answer["during"]) in (20, 22)
    assert len(answer["before"]) in (2 * (5 - 1), 2 * (6 - 1))
    assert sum(answer["during"]) / 2 >= 0.5 * answer["ttft"] > 0
    assert client.ended == set(client.times)


class SteppedCore:
    """A simulated core that is stepped like the torch engine's and says that each part of a step took 1 ms."""

    def __init__(self) -> None:
        self._core = SimulatedCore(SimulatedModel(models=(ours.MODEL,)))
        self.info = engine().info
        self.timings = dict.fromkeys(steps.PARTS, 0.001)
        self.add, self.has_work = self._core.add, self._core.has_work

    def step(self) -> StepOutput:
        self._core.plan()
        return self._core.apply(0.0)


async def test_overhead_is_measured_over_the_decode_steps_of_the_full_batch() -> None:
    order = {"repeat": 1, "batch": 4, "prompt": 16, "vocabulary": 4096, "steps": 10}
    answer = steps.overhead(SteppedCore(), order)  # type: ignore[arg-type]
    assert {name: answer[name] for name in steps.PARTS} == dict.fromkeys(steps.PARTS, 0.001)
    # Sequences are eight tokens longer than asked; neither the prompts' step nor the one that ends them counts.
    assert answer["steps"] == 10 + 8 - 2
    assert answer["framing"] > 0


def test_an_engine_that_does_not_tell_its_timings_is_refused() -> None:
    with pytest.raises(RuntimeError, match="does not tell"):
        steps.timings(object())  # type: ignore[arg-type]


def test_a_setting_that_the_engine_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="no setting threds"):
        ours.settings("folder", {"threds": 1})


# --- arithmetic ---


def answer(seconds: float, first: float) -> dict[str, Any]:
    return {"seconds": seconds, "ttft": [first] * 3, "prompt_tokens": 300, "output_tokens": 100}


def test_ratios_are_taken_within_repeats_and_named_for_the_workload() -> None:
    answers = {
        "hf": [answer(4, 8), answer(8, 8), answer(4, 8)],
        "ours": [answer(2, 1), answer(2, 1), answer(4, 1)],
    }
    figures = report.compare(answers, checkpoint="t", workload="a")
    assert figures == {
        "tps_hf_t_a": 100,
        "tps_ours_t_a": 200,
        "ttft_p50_s_hf_t_a": 8,
        "ttft_p50_s_ours_t_a": 1,
        "tps_ratio_hf_a": 2,
        "ttft_ratio_hf_a": 8,
    }


def test_a_single_stream_counts_output_alone_and_other_places_carry_the_checkpoint() -> None:
    answers = {"vllm": [answer(1, 1)], "ours": [answer(2, 1)]}
    assert report.compare(answers, checkpoint="s", workload="c")["tps_ours_s_c"] == 50
    assert report.compare(answers, checkpoint="s", workload="a")["tps_ratio_vllm_s_a"] == 0.5
    assert report.compare(answers, checkpoint="phi3", workload="a")["tps_ratio_vllm_a_phi3"] == 0.5


def test_overhead_is_scheduling_applying_and_framing_of_the_whole_step() -> None:
    seconds = {
        "schedule": 0.0002,
        "prepare": 0.001,
        "forward": 0.006,
        "sample": 0.001,
        "apply": 0.0003,
        "total": 0.0098,
    }
    figures = report.overhead([seconds | {"framing": 0.0002}])
    assert figures["overhead_ms_b32_s"] == pytest.approx(0.7)
    assert figures["overhead_share_b32_s"] == pytest.approx(0.07)
    assert figures["prepare_ms_b32_s"] == pytest.approx(1)


def test_memory_is_the_most_that_was_seen() -> None:
    answers = [{"blocks_total": 10, "blocks_peak": peak, "rss_peak": 10 * peak, "rss_loaded": 5} for peak in (3, 7)]
    assert report.memory(answers, block_bytes=100) == {
        "kv_bytes_configured": 1000,
        "kv_bytes_peak": 700,
        "rss_growth_bytes": 65,
    }


def test_interference_takes_medians_of_each_repeats_percentile() -> None:
    answers = [{"during": [0.001, worst], "before": [0.001], "ttft": 0.1} for worst in (0.010, 0.020, 0.900)]
    figures = report.interference(answers, suffix="chunked")
    assert figures["itl_p99_ms_chunked"] == pytest.approx(20)
    assert figures["itl_p99_ms_chunked_before"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::addmm", "linear layers"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::index_copy_", "reading and writing the KV memory"),
        ("aten::silu", "element-wise arithmetic and views"),
        ("weir::paged", "other operations"),
    ],
)
def test_operations_have_their_kinds(operation: str, kind: str) -> None:
    assert steps.kind_of(operation) == kind
