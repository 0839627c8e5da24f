"""The torch engine's core: seeds, deadlines, failures, memory."""

import asyncio
import random

import pytest
import support_checkpoints as support
import torch
from safetensors.torch import load_file, save_file
from support_checkpoints import MODEL, Collected, make_core, request, run

from libs.clock import ManualClock
from services.worker.engines.port import EngineLoadError, FinishReason
from services.worker.engines.torch_engine import TorchSettings, build


def prompts(seed, count, longest=30):
    source = random.Random(seed)
    return [[source.randrange(3, support.VOCABULARY) for _ in range(source.randint(1, longest))] for _ in range(count)]


SAMPLED = {"temperature": 0.9, "top_p": 0.95, "min_p": 0.01, "frequency_penalty": 0.2, "max_tokens": 16}


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(tiny):
    core = make_core({MODEL: tiny[0]}, max_step_tokens=20)
    asked = prompts(1, 10)
    alone = {i: run(core, [request(i, each, seed=500 + i, **SAMPLED)]).tokens[i] for i, each in enumerate(asked)}
    together = run(core, [request(i, each, seed=500 + i, **SAMPLED) for i, each in enumerate(asked)])
    assert together.tokens == alone
    other = run(core, [request(0, asked[0], seed=1, **SAMPLED)])
    assert other.tokens[0] != alone[0]


def test_a_resumed_sequence_draws_what_the_first_would_have_drawn(tiny):
    core = make_core({MODEL: tiny[0]})
    prompt = prompts(2, 1)[0]
    settings = {"temperature": 1.0, "seed": 3, "ignore_eos": True}
    whole = run(core, [request(1, prompt, max_tokens=16, **settings)]).tokens[1]
    rest = run(core, [request(2, prompt + whole[:7], max_tokens=9, **settings)]).tokens[2]
    assert whole[7:] == rest


def test_requests_without_a_seed_draw_their_own(tiny):
    numbers = iter([5, 6])
    core = make_core({MODEL: tiny[0]})
    core._draw_seed = lambda: next(numbers)
    prompt = prompts(3, 1)[0]
    collected = run(core, [request(i, prompt, temperature=1.5, max_tokens=20, ignore_eos=True) for i in range(2)])
    again = run(core, [request(7, prompt, temperature=1.5, max_tokens=20, ignore_eos=True, seed=5)])
    assert collected.tokens[0] != collected.tokens[1]
    assert collected.tokens[0] == again.tokens[7]


def test_cached_prompt_tokens_are_reported_once_with_the_first_token(tiny):
    core = make_core({MODEL: tiny[0]}, max_step_tokens=16)
    core.add([request(1, prompts(4, 1)[0] * 2 + [5] * 20)])
    reports = []
    while core.has_work():
        output = core.step()
        if output.prompt_tokens_cached:
            reports.append((output.handles, output.prompt_tokens_cached))
    assert reports == [([1], {1: 0})]


def test_deadlines_are_read_on_the_clock(tiny):
    clock = ManualClock()
    core = make_core({MODEL: tiny[0]}, clock=clock)
    core.add([request(1, [5, 6], deadline=10.0, ignore_eos=True), request(2, [5, 6], ignore_eos=True)])
    collected = Collected()
    collected.take(core.step())
    clock.advance(10.0)
    collected.take(core.step())
    assert (collected.finish, len(collected.tokens[1])) == ({1: FinishReason.DEADLINE}, 1)
    assert len(collected.tokens[2]) == 2


def test_a_model_that_yields_no_numbers_fails_its_sequence_and_poisons_no_memory(tiny, tmp_path):
    folder, model = tiny
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    # Token 50 alone is broken; the self-test does not use it.
    weights["model.embed_tokens.weight"][50] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    support.write_manifest(tmp_path)
    core = make_core({MODEL: tmp_path}, total_blocks=16, max_step_tokens=16)
    good = [9, 8, 7, 6, 5]
    expected = support.reference(model, good, 8)
    for _ in range(3):
        collected = run(core, [request(1, [50] * 20), request(2, good, max_tokens=8), request(3, [4, 50])])
        assert {handle: finish for handle, finish in collected.finish.items() if handle != 2} == {
            1: FinishReason.ERROR,
            3: FinishReason.ERROR,
        }
        assert collected.errors.keys() == {1, 3}
        assert collected.tokens[2] == expected
    assert core.capacity().free_blocks == 16


def test_every_block_is_free_after_a_fuzzed_run(tiny):
    source, clock = random.Random(8), ManualClock()
    core = make_core({MODEL: tiny[0]}, clock=clock, total_blocks=60, max_running=6, max_step_tokens=24)
    collected, handles = Collected(), 0
    for _ in range(150):
        for _ in range(source.randint(0, 2)):
            deadline = clock.monotonic() + source.randint(1, 30) if source.random() < 0.3 else None
            prompt = prompts(handles, 1, 50)[0] if source.random() < 0.9 else []
            params = {"temperature": source.choice([0.0, 1.0]), "max_tokens": source.randint(1, 40)}
            core.add([request(handles, prompt, deadline=deadline, **params)])
            handles += 1
        if source.random() < 0.3:
            core.cancel([source.randrange(handles + 1) for _ in range(2)])
        clock.advance(1.0)
        if core.has_work():
            collected.take(core.step())
            capacity = core.capacity()
            assert capacity.running <= 6
            assert (capacity.free_blocks == 60) == (capacity.running == 0)
    while core.has_work():
        collected.take(core.step())
    assert collected.finish.keys() == set(range(handles))
    assert set(collected.finish.values()) == set(FinishReason)
    assert core.capacity().free_blocks == 60
    assert core._samplers == {}


def test_info_and_capacity(tiny):
    core = make_core({MODEL: tiny[0]}, total_blocks=20)
    info = core.info
    assert (info.engine, info.simulated, info.models) == ("torch", False, (MODEL,))
    # 20 blocks of 4 tokens hold less than the model's context of 128.
    assert (info.block_size, info.total_blocks, info.max_running, info.max_context) == (4, 20, 16, 80)
    core.add([request(1, [5] * 9, max_tokens=4), request(2, [5] * 80)])
    assert (core.capacity().waiting, core.capacity().queued_prefill_tokens) == (1, 9)
    core.step()
    capacity = core.capacity()
    assert (capacity.running, capacity.waiting, capacity.queued_prefill_tokens) == (1, 0, 0)
    assert capacity.free_blocks == 20 - 3


def test_embedding_refuses_what_it_cannot_do(tiny):
    core = make_core({MODEL: tiny[0]})
    with pytest.raises(EngineLoadError, match="other@1"):
        core.embed("other@1", [[1]])
    for bad in ([], [support.VOCABULARY], [-1], [1] * 129):
        with pytest.raises(ValueError, match="prompt to embed"):
            core.embed(MODEL, [bad])
    assert core.embed(MODEL, []) == []


def test_importing_the_engine_does_not_import_torch():
    import subprocess
    import sys

    code = "import sys, services.worker.engines.torch_engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_batched_decode_is_one_forward_pass(tiny, monkeypatch):
    core = make_core({MODEL: tiny[0]}, max_running=12, max_step_tokens=400)
    core.add([request(i, each, ignore_eos=True) for i, each in enumerate(prompts(5, 12))])
    core.step()
    sizes = []
    model = core._parts.models.shelf.loaded(MODEL).runner.model
    original = model.hidden
    monkeypatch.setattr(model, "hidden", lambda tokens, *rest: sizes.append(len(tokens)) or original(tokens, *rest))
    core.step()
    assert sizes == [12]
    assert torch.is_inference_mode_enabled() is False


async def test_the_whole_engine_behind_its_port(tiny):
    folder, model = tiny
    asked = prompts(6, 6)
    engine = build(TorchSettings(models={MODEL: folder}, block_size=4, total_blocks=64, max_running=3))
    collected, changed = Collected(), asyncio.Event()

    def sink(output):
        collected.take(output)
        changed.set()

    async def until(condition):
        async with asyncio.timeout(30):
            while not condition():
                changed.clear()
                await changed.wait()

    await engine.start(sink)
    assert engine.capacity().free_blocks == 64
    engine.submit([request(i, each) for i, each in enumerate(asked)])
    engine.submit([request(90, [5, 6], max_tokens=120, ignore_eos=True), request(91, [])])
    await until(lambda: 90 in collected.tokens)
    engine.cancel([90])
    assert len((await engine.embed(MODEL, [[1, 2, 3]]))[0]) == 32
    await until(lambda: len(collected.finish) == 8)
    assert [collected.tokens[i] for i in range(6)] == [support.reference(model, each) for each in asked]
    assert collected.finish[90] == FinishReason.CANCELLED
    assert collected.finish[91] == FinishReason.ERROR
    assert engine.capacity().free_blocks == 64
    await engine.stop()
