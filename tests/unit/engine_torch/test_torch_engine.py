"""The torch engine's core: seeds, deadlines, failures, memory."""

import asyncio
import os
import random
from pathlib import Path

import pytest
import support_checkpoints as support
import torch
from safetensors.torch import load_file, save_file
from support_checkpoints import MODEL, Collected, make_core, request, run
from tokenizers import Tokenizer

from libs.clock import ManualClock
from services.worker.engines.port import EngineLoadError, FinishReason
from services.worker.engines.torch_engine import TorchSettings
from services.worker.engines.torch_engine.hosting import build
from services.worker.engines.torch_engine.model import Decoder


def prompts(seed, count, longest=30):
    source = random.Random(seed)
    return [[source.randrange(3, support.VOCABULARY) for _ in range(source.randint(1, longest))] for _ in range(count)]


SAMPLED = {"temperature": 0.9, "top_p": 0.95, "min_p": 0.01, "frequency_penalty": 0.2, "max_tokens": 16}


TIGHT = {"total_blocks": 26, "max_step_tokens": 20}


@pytest.fixture(scope="module")
def drawn(tiny):
    """Prompts and, by handle, what each draws from its seed when nothing else runs."""
    asked = prompts(1, 32)
    core = make_core({MODEL: tiny[0]}, max_running=1, prefix_cache=False)
    return asked, {i: run(core, [seeded(i, each)]).tokens[i] for i, each in enumerate(asked)}


def seeded(handle, prompt, **params):
    return request(handle, prompt, **{"seed": 500 + handle, "ignore_eos": True, **SAMPLED, **params})


@pytest.mark.parametrize(
    ("changes", "preempted"),
    [
        ({"max_running": 32, "max_step_tokens": 1024, "total_blocks": 512}, False),
        ({"max_running": 32, "max_step_tokens": 32, "total_blocks": 512}, False),
        (TIGHT | {"preemption": "recompute"}, True),
        (TIGHT | {"host_bytes": 1 << 20}, True),
        (TIGHT | {"host_bytes": 1 << 14, "disk_bytes": 1 << 20}, True),
    ],
)
def test_a_seed_gives_the_same_tokens_alone_in_a_batch_and_through_preemption(tiny, drawn, changes, preempted):
    asked, alone = drawn
    core = make_core({MODEL: tiny[0]}, **changes)
    core.add([seeded(i, each) for i, each in enumerate(asked)])
    together, most = Collected(), 0
    while core.has_work():
        together.take(core.step())
        most = max(most, core.capacity().running)
    assert together.tokens == alone
    assert (core.capacity().preemptions_total > 0) is preempted
    assert most == 32 or changes["max_step_tokens"] < 1024
    core.close()


def test_other_seeds_give_other_tokens(tiny, drawn):
    asked, alone = drawn
    core = make_core({MODEL: tiny[0]})
    other = run(core, [seeded(i, each, seed=9_000 + i) for i, each in enumerate(asked)])
    assert sum(other.tokens[i] != alone[i] for i in alone) > 24


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


def test_a_deadline_ends_swapped_and_waiting_sequences_too(tiny):
    clock = ManualClock()
    core = make_core({MODEL: tiny[0]}, clock, total_blocks=16, max_running=4, host_bytes=1 << 20)
    core.add([request(i, [5 + i] * 16, max_tokens=40, ignore_eos=True, deadline=5.0) for i in range(6)])
    collected = Collected()
    while not core.capacity().swapped:
        collected.take(core.step())
    assert core.capacity().spilled_blocks > 0
    clock.advance(5.0)
    collected.take(core.step())
    assert collected.finish == dict.fromkeys(range(6), FinishReason.DEADLINE)
    assert not core.has_work()
    assert (core.capacity().free_blocks, core.capacity().swapped) == (16, 0)


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        ("model gone@1 is not loaded here", {"model": "gone@1"}),
        ("the prompt is empty", {"prompt": []}),
        ("the prompt has 64 tokens and the context only 64", {"prompt": [5] * 64}),
        ("the prompt holds a token id outside 0 … 96", {"prompt": [5, 97]}),
        ("max_tokens must be at least 1", {"max_tokens": 0}),
        ("logprobs is out of range", {"logprobs": 98}),
        ("logit_bias names an unknown token id", {"logit_bias": {97: 1.0}}),
    ],
)
def test_an_impossible_request_is_answered_and_takes_nothing(tiny, fault, changes):
    # 16 blocks of four tokens are less than the model's context.
    core = make_core({MODEL: tiny[0]}, total_blocks=16)
    good = request(2, [5, 6], max_tokens=3, ignore_eos=True)
    collected = run(core, [request(1, **{"prompt": [5], **changes}), good])
    assert collected.finish == {1: FinishReason.ERROR, 2: FinishReason.LENGTH}
    assert collected.errors == {1: fault}
    assert core.capacity().free_blocks == 16


def test_memory_is_never_more_than_was_configured(tiny, tmp_path):
    # A block: 4 tokens, 2 layers, 2 heads of 8, keys and values, 4 bytes each.
    block = 4 * 2 * 2 * 8 * 2 * 4
    core = make_core(
        {MODEL: tiny[0]}, kv_bytes=26 * block + 5, host_bytes=10 * block + 5, disk_bytes=20 * block + 5,
        spill_folder=tmp_path, max_running=12,
    )  # fmt: skip
    memory, pool = core._parts.models.memory, core._parts.pool
    assert (core.info.total_blocks, memory.bytes_per_block) == (26, block)
    core.add([request(i, each, max_tokens=30, ignore_eos=True) for i, each in enumerate(prompts(9, 40, 60))])
    spilled = 0
    while core.has_work():
        core.step()
        capacity = core.capacity()
        spilled = max(spilled, capacity.spilled_blocks)
        assert capacity.running <= 12
        assert pool.total - pool.free <= 26
        assert capacity.spilled_blocks <= 30
        assert memory.nbytes == 36 * block
    assert spilled == 30  # the bounds were reached
    assert list(tmp_path.iterdir()) == []
    pool.check_integrity([])
    core.close()
    with pytest.raises(EngineLoadError, match="kv_bytes"):
        make_core({MODEL: tiny[0]}, kv_bytes=block - 1)


def test_damaged_and_unwritten_disk_blocks_change_nothing(tiny, monkeypatch):
    folder, model = tiny
    asked = prompts(10, 20, 60)
    core = make_core({MODEL: folder}, total_blocks=24, max_running=8, disk_bytes=1 << 20)
    tier, chance, harmed = core._parts.models.memory._disk, random.Random(3), 0
    write = tier.write

    def harm(slot, block):
        nonlocal harmed
        write(slot, block)
        if chance.random() < 0.3:
            harmed += 1
            os.pwrite(tier._file.fileno(), bytes(64), slot * block.numel())

    monkeypatch.setattr(tier, "write", harm)
    collected = run(core, [request(i, each) for i, each in enumerate(asked * 2)])
    expected = [support.reference(model, each) for each in asked]
    assert [collected.tokens[i] for i in range(40)] == expected * 2
    assert harmed > 20
    assert core.capacity().preemptions_total > 0
    core.close()


DEMO = Path(__file__).parents[3] / "models" / "demo" / "fast"
QUESTIONS = ["What is a weir?", "Tell me about the river.", "Hello!", "Who are you?", "How do I cook rice?", "Why?"]
WEIGHTS = {"bfloat16": (0.7, 0.01), "int8": (0.85, 0.01)}
"""By kind: the least share of tokens up to the first that differs from float32's, and the greatest mean distance of
their log-probabilities."""


@pytest.mark.parametrize("weights", WEIGHTS)
def test_smaller_weights_answer_almost_alike(weights):
    name, tokenizer = "weir-fast@1", Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    asked = [
        request(i, tokenizer.encode(each).ids, model=name, max_tokens=24, logprobs=0, ignore_eos=True)
        for i, each in enumerate(QUESTIONS)
    ]
    exact = run(make_core({name: DEMO}), asked)
    tight = make_core({name: DEMO}, weights=weights, total_blocks=18, max_step_tokens=16, host_bytes=1 << 24)
    rough = run(tight, asked)
    assert tight.capacity().preemptions_total > 0
    assert run(make_core({name: DEMO}, weights=weights), asked).tokens == rough.tokens
    alike, total, distance = 0, 0, 0.0
    for i, theirs in exact.tokens.items():
        pairs = zip(rough.tokens[i], theirs, strict=False)
        same = next((place for place, (one, other) in enumerate(pairs) if one != other), len(theirs))
        alike, total = alike + same, total + len(theirs)
        entries = zip(rough.logprobs[i][:same], exact.logprobs[i][:same], strict=True)
        distance += sum(abs(ours.logprob - their.logprob) for ours, their in entries)
    share, most = WEIGHTS[weights]
    assert alike / total >= share
    assert distance / alike <= most


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


def test_e4_a_model_that_yields_no_numbers_for_anybody_fails_the_engine_and_a_prompt_does_not(tiny, tmp_path):
    for file in tiny[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][50] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    support.write_manifest(tmp_path)
    core = make_core({MODEL: tmp_path})
    poison = [request(handle, [50] * 3) for handle in range(40)]
    assert set(run(core, poison).finish.values()) == {FinishReason.ERROR}
    with torch.inference_mode():  # the memory of the device fails
        core._parts.models.shelf.loaded(MODEL).runner.model._own_rows.fill_(float("nan"))
    sound = [request(handle, [5] * 3) for handle in range(7)]
    assert set(run(core, sound).finish.values()) == {FinishReason.ERROR}
    with pytest.raises(EngineLoadError, match="self-test failed"):
        run(core, [request(7, [5] * 3)])


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
        support.embed(core, [1], "other@1")
    for bad in ([], [support.VOCABULARY], [-1], [1] * 129):
        with pytest.raises(ValueError, match="prompt to embed"):
            support.embed(core, bad)


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


def test_a_cancel_frees_memory_at_once_and_says_so_with_the_next_step(tiny):
    core = make_core({MODEL: tiny[0]}, prefix_cache=False)
    core.add([request(1, [5, 6, 7], max_tokens=60, ignore_eos=True), request(2, [8, 9], max_tokens=60)])
    for _ in range(3):
        core.step()
    total = core.info.total_blocks
    assert core.capacity().free_blocks < total
    core.cancel([1, 2])
    assert core.capacity().free_blocks == total
    output = core.step()
    assert (output.handles, output.finish) == ([1, 2], [FinishReason.CANCELLED] * 2)
    assert output.ended_before


def test_the_load_names_the_models_in_memory_when_not_all_are(tiny, tmp_path):
    other = tmp_path / "other"
    support.save_checkpoint(other, seed=3)
    support.write_manifest(other, "other@1")
    both = {MODEL: tiny[0], "other@1": other}
    assert make_core(both).capacity().resident is None
    weights = sum(each.stat().st_size for each in other.glob("*.safetensors"))
    core = make_core(both, weight_bytes=weights * 3 // 2, min_residency=0.0)
    assert core.capacity().resident == (MODEL,)
    run(core, [request(1, [5, 6, 7], model="other@1")])
    assert core.capacity().resident == ("other@1",)


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_engines_know_whether_their_numbers_are_alike(tiny, weights):
    one, two = (make_core({MODEL: tiny[0]}, weights=weights).info.numerics for _ in range(2))
    assert one == two
    assert one.keys() == {MODEL}
    assert one != make_core({MODEL: tiny[0]}, weights="int8" if weights == "float32" else "float32").info.numerics


def test_numbers_that_depend_on_the_batch_are_nobodys(tiny, monkeypatch, caplog):
    hidden = Decoder.hidden

    def dependent(self, tokens, *rest):
        return hidden(self, tokens, *rest) * (1 + 1e-6 * len(tokens))

    monkeypatch.setattr(Decoder, "hidden", dependent)
    core = make_core({MODEL: tiny[0]})
    assert core.info.numerics == {}
    assert "depend on what else is in a batch" in caplog.text
    assert run(core, [request(1, [3, 4, 5], max_tokens=3)]).tokens[1]
