"""What the vLLM adapter says to vLLM and reads from it and from folders; needs no vLLM."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import engine_cases
import pytest
from engine_cases import EOS, MODEL

from libs.structured_output import unforced
from services.worker.config import VllmOptions
from services.worker.engines.library import Load, RequestRefusedError
from services.worker.engines.port import EngineLoadError, FinishReason, SamplingParams, Structure
from services.worker.engines.vllm import VllmSettings, engine_arguments
from services.worker.engines.vllm_files import Checkpoint, adapter_rank, check_adapter, read_checkpoint
from services.worker.engines.vllm_requests import (
    bar,
    begun,
    delta_of,
    salt_text,
    sampling_arguments,
    stop_ids,
    structure_arguments,
)
from services.worker.engines.vllm_stats import SchedulerWatch

REGEX = Structure("regex", "a+")


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {2, 3}),
        ({"ignore_eos": True}, set()),
        ({"ignore_eos": True, "stop_token_ids": (9,)}, {9}),
        ({"ignore_eos": True, "structure": REGEX}, {2, 3, 4}),
        ({"structure": REGEX, "stop_token_ids": (9,)}, {2, 3, 4, 9}),
    ],
)
def test_what_ends_a_sequence(params, expected):
    assert stop_ids(SamplingParams(max_tokens=1, **params), frozenset({2, 3}), 4) == expected


def test_every_sampling_parameter_is_passed_on():
    params = SamplingParams(
        max_tokens=50, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.3, logit_bias={4: -1.0}, seed=-1, stop_token_ids=(9,), min_tokens=7, logprobs=3,
    )  # fmt: skip
    arguments = sampling_arguments(params, room=20, stops={9, 2})
    assert arguments == {
        "max_tokens": 20, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.3, "logit_bias": {4: -1.0}, "seed": 2**63 - 1,
        "stop_token_ids": [2, 9], "min_tokens": 7, "ignore_eos": True, "logprobs": 3, "detokenize": False,
    }  # fmt: skip
    assert sampling_arguments(params, room=5, stops=set())["min_tokens"] == 5
    assert sampling_arguments(SamplingParams(max_tokens=5), room=20, stops=set())["seed"] is None


def test_bad_words_are_given_as_tokens():
    theirs = SimpleNamespace(_bad_words_token_ids=None)
    bar(theirs, ((4, 5), (6,)))
    assert theirs._bad_words_token_ids == [[4, 5], [6]]
    with pytest.raises(RequestRefusedError, match="bad_words"):
        bar(SimpleNamespace(), ((4,),))


@pytest.mark.parametrize(
    ("output", "within"), [([], False), ([4], True), ([1, 4, 5], True), ([4, 5, 6], False), ([5], False), ([7], False)]
)
def test_an_output_may_end_within_a_bad_word(output, within):
    assert begun(((4, 5, 6), (7,)), output) == within


def test_a_structure_is_json_a_regex_or_a_grammar():
    assert structure_arguments(SamplingParams(max_tokens=1)) is None
    assert structure_arguments(SamplingParams(max_tokens=1, structure=REGEX)) == {"regex": "a+"}
    schema = Structure("json_schema", "{}")
    assert structure_arguments(SamplingParams(max_tokens=1, structure=schema)) == {"json": "{}"}
    grammar = Structure("grammar", 'start: "a"')
    assert structure_arguments(SamplingParams(max_tokens=1, structure=grammar)) == {"grammar": unforced('start: "a"')}


def test_salts_stay_apart_and_no_salt_is_none():
    assert salt_text(b"") is None
    assert len({salt_text(each) for each in (b"a", b"A", b"a\x00", b"\xff")}) == 4


def output(tokens: list[int], reason: str | None, logprobs: object = None) -> SimpleNamespace:
    completion = SimpleNamespace(token_ids=tokens, finish_reason=reason, logprobs=logprobs)
    return SimpleNamespace(outputs=[completion], finished=reason is not None, num_cached_tokens=None)


@pytest.mark.parametrize(
    ("tokens", "reason", "expected", "finish"),
    [
        ([7], None, [7], None),
        ([7, 2], "stop", [7], FinishReason.STOP),
        ([7, 8], "stop", [7, 8], FinishReason.STOP),
        ([2], "length", [2], FinishReason.LENGTH),
        ([], "abort", [], FinishReason.CANCELLED),
        ([], "error", [], FinishReason.ERROR),
    ],
)
def test_the_token_that_stopped_is_not_delivered(tokens, reason, expected, finish):
    logprobs = [{token: SimpleNamespace(logprob=-1.0)} for token in tokens]
    delta = delta_of(output(tokens, reason, logprobs), SamplingParams(max_tokens=9, logprobs=0), {2})
    assert (delta.tokens, delta.finish, delta.cached) == (expected, finish, 0)
    assert len(delta.logprobs) == len(expected)


def test_settings_and_options_name_the_same_things():
    settings = VllmSettings(model=MODEL, folder="x")
    options = VllmOptions()
    assert {name: getattr(settings, name) for name in options.__struct_fields__} == {
        name: getattr(options, name) for name in options.__struct_fields__
    }
    assert set(VllmSettings.__struct_fields__) == {"model", "folder", *options.__struct_fields__}


def test_memory_is_asked_for_in_blocks_bytes_or_a_share():
    checkpoint = Checkpoint(eos=frozenset(), has_tokenizer=False)
    blocks = engine_arguments(VllmSettings(model=MODEL, folder="x", total_blocks=10), checkpoint)
    assert blocks["num_gpu_blocks_override"] == 11
    assert blocks["skip_tokenizer_init"]
    share = engine_arguments(VllmSettings(model=MODEL, folder="x", kv_cache_bytes=0, memory_share=0.5), checkpoint)
    assert share["gpu_memory_utilization"] == 0.5
    assert not {"num_gpu_blocks_override", "kv_cache_memory_bytes", "max_model_len"} & set(share)


@pytest.fixture
def folder(tmp_path):
    engine_cases.save_tiny_checkpoint(tmp_path)
    return tmp_path


def test_a_checkpoint_tells_its_ends_and_its_tokenizer(folder):
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "manifest.json").unlink(missing_ok=True)
    found = read_checkpoint(folder, MODEL, require_manifest=False)
    assert found == Checkpoint(eos=frozenset({EOS}), has_tokenizer=True)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert read_checkpoint(folder, MODEL, require_manifest=False).eos == {2, 7}


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"short"), "model.safetensors"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json"),
        (lambda folder: (folder / "extra.safetensors").write_bytes(b"unlisted"), "extra.safetensors"),
    ],
    ids=["no config", "broken config", "truncated weights", "no tokenizer", "no manifest", "unlisted weights"],
)
def test_a_folder_that_is_not_what_its_manifest_says_is_refused_by_name(folder, spoil, named):
    assert read_checkpoint(folder, MODEL, require_manifest=True).has_tokenizer
    spoil(folder)
    with pytest.raises(EngineLoadError, match=named):
        read_checkpoint(folder, MODEL, require_manifest=True)


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(EngineLoadError, match="safetensors"):
        read_checkpoint(folder, MODEL, require_manifest=False)


@pytest.mark.parametrize(("ranks", "reserved"), [((4,), 8), ((8, 9), 16), ((1,), 1), ((512,), 512)])
def test_the_reserved_rank_fits_every_adapter(tmp_path, ranks, reserved):
    folders = {}
    for number, rank in enumerate(ranks):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
        folders[f"a@{number}"] = str(folder)
    assert adapter_rank(folders) == reserved


@pytest.mark.parametrize("content", ["{}", '{"r": 0}', '{"r": 1024}', "nonsense", None])
def test_an_adapter_without_a_usable_rank_is_refused_by_name(tmp_path, content):
    if content is not None:
        (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(EngineLoadError, match=r"adapter_config\.json"):
        adapter_rank({"a@1": str(tmp_path)})


def test_an_adapter_is_held_to_its_manifest_and_to_safetensors(tmp_path):
    config, weights, pickled = (
        tmp_path / name for name in ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
    )
    config.write_text('{"r": 4}')
    pickled.write_bytes(b"weights")
    with pytest.raises(EngineLoadError, match=r"adapter_model\.safetensors"):
        check_adapter(tmp_path, "a@1", require_manifest=False)
    weights.write_bytes(b"weights")
    check_adapter(tmp_path, "a@1", require_manifest=False)
    with pytest.raises(EngineLoadError, match=r"manifest\.json"):
        check_adapter(tmp_path, "a@1", require_manifest=True)
    engine_cases.save_manifest(tmp_path, "a", "1")
    check_adapter(tmp_path, "a@1", require_manifest=True)
    weights.write_bytes(b"another")
    with pytest.raises(EngineLoadError, match=r"adapter_model\.safetensors"):
        check_adapter(tmp_path, "a@1", require_manifest=False)  # a manifest that is there counts


class Ticks:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def scheduler(running: int, usage: float, queries: int = 0, hits: int = 0) -> SimpleNamespace:
    prefix = SimpleNamespace(queries=queries, hits=hits)
    return SimpleNamespace(num_running_reqs=running, kv_cache_usage=usage, prefix_cache_stats=prefix)


def iteration(prompt_tokens: int = 0, preempted: int = 0) -> SimpleNamespace:
    return SimpleNamespace(num_prompt_tokens=prompt_tokens, num_preempted_reqs=preempted)


def load(started: int, unstarted: int) -> Load:
    return Load(started=started, unstarted=unstarted, queued_prefill_tokens=0, reserved_blocks=0, last_step_seconds=0.0)


def test_capacity_is_vllms_own_where_it_has_seen_the_sequences():
    clock = Ticks()
    watch = SchedulerWatch(clock=clock)
    watch.total_blocks = 100
    clock.now = -1.0
    watch.begin()
    clock.now = -0.5
    watch.begin()
    clock.now = 0.5
    watch.record(scheduler(2, 0.25, queries=30, hits=16), iteration(prompt_tokens=30))
    clock.now = 1.0
    watch.record(scheduler(2, 0.25, queries=10), iteration(prompt_tokens=10, preempted=1))
    clock.now = 1.25
    watch.record(scheduler(2, 0.3), None)  # a chunk of a prompt
    clock.now = 1.5
    watch.record(scheduler(2, 0.3), iteration(prompt_tokens=10))
    clock.now = 1.51
    watch.record(scheduler(2, 0.3), iteration())
    found = watch.capacity(load(started=2, unstarted=3))
    assert (found.free_blocks, found.running, found.waiting) == (70, 2, 3)
    assert (found.prefix_queried_total, found.prefix_hit_total, found.preemptions_total) == (40, 16, 1)
    assert found.decode_step_seconds == pytest.approx(0.01)
    assert found.prefill_tokens_per_second == pytest.approx(20)
    idle = watch.capacity(load(started=0, unstarted=0))
    assert (idle.free_blocks, idle.running, idle.waiting) == (100, 0, 0)


def test_the_time_between_two_bursts_is_no_step():
    clock = Ticks()
    watch = SchedulerWatch(clock=clock)
    watch.record(scheduler(1, 0.1), iteration())
    clock.now = 0.01
    watch.record(scheduler(0, 0.0), iteration())
    clock.now = 100.0
    watch.record(scheduler(1, 0.1), iteration())
    assert watch.capacity(load(started=1, unstarted=0)).decode_step_seconds == pytest.approx(0.01)


async def test_e5_what_was_aborted_is_free_once_a_step_that_heard_of_it_has_ended():
    watch = SchedulerWatch(clock=Ticks())
    waits = [asyncio.create_task(watch.settled(60.0))]
    await asyncio.sleep(0)
    watch.record(scheduler(2, 0.1), iteration())  # it may have begun before
    waits.append(asyncio.create_task(watch.settled(60.0)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waits[0].done()
    watch.record(scheduler(2, 0.1), iteration())
    await waits[0]
    assert not waits[1].done()
    watch.record(scheduler(0, 0.0), None)  # nothing runs any more
    await waits[1]
    await watch.settled(0.001)  # a step that never comes is not waited for
    watch.record(scheduler(0, 0.0), None)
