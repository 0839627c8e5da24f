"""What every engine behind services/worker/engines/port.py must do."""

from __future__ import annotations

import asyncio
import math

import pytest
from engine_cases import CLOCK, CONTEXT, EOS, MODEL, VOCABULARY, Driver, request, text_of

from services.worker.engines.port import EngineLoadError, FinishReason, Structure

pytestmark = pytest.mark.asyncio(loop_scope="module")


def assert_idle(driver: Driver) -> None:
    """All memory is back and nothing runs or waits."""
    load, info = driver.engine.capacity(), driver.engine.info
    assert (load.free_blocks, load.running, load.waiting, load.queued_prefill_tokens) == (info.total_blocks, 0, 0, 0)


async def test_info_names_the_models_and_sizes(driver):
    info = driver.engine.info
    assert info.models == (MODEL,)
    assert (info.total_blocks, info.max_running, info.max_context) == (64, 4, CONTEXT)
    assert info.block_size == (32 if info.engine == "vllm" else 4)
    assert info.simulated == info.engine.startswith("simulated")
    assert_idle(driver)


async def test_a_sequence_runs_to_its_length(driver):
    driver.engine.submit([request(1)])
    await driver.finished(1)
    assert len(driver.tokens[1]) == 6
    assert driver.finish[1] == FinishReason.LENGTH
    assert driver.cached[1] == 0
    assert_idle(driver)


async def test_more_sequences_than_run_at_once_all_end(driver):
    driver.engine.submit([request(handle, max_tokens=3 + handle % 4) for handle in range(10)])
    load = driver.engine.capacity()
    assert load.running + load.waiting == 10
    await driver.finished(*range(10))
    assert [len(driver.tokens[handle]) for handle in range(10)] == [3 + handle % 4 for handle in range(10)]
    assert_idle(driver)


async def test_greedy_output_does_not_depend_on_the_batch(driver):
    driver.engine.submit([request(1)])
    await driver.finished(1)
    driver.engine.submit([request(2), request(3, [20, 21]), request(4, [5] * 17)])
    await driver.finished(2, 3, 4)
    assert driver.tokens[2] == driver.tokens[1]


async def test_sequences_that_advance_together_share_their_frames(driver):
    await driver.run(*(request(handle, max_tokens=20) for handle in range(4)))
    # At most 20 steps of four and a few more where they did not start as one; a late event loop may find several steps.
    assert driver.frames <= 30
    assert sum(len(driver.tokens[handle]) for handle in range(4)) == 80


async def test_a_seed_reproduces_alone_and_in_any_batch(driver):
    params = {"temperature": 1.0, "max_tokens": 16}
    await driver.run(request(1, seed=5, **params))
    await driver.run(
        request(2, [30], **params),
        request(3, seed=5, **params),
        request(4, seed=6, **params),
        request(5, [11] * 20, temperature=0.0, max_tokens=16),
    )
    assert driver.tokens[1] == driver.tokens[3]
    assert driver.tokens[1] != driver.tokens[4]


async def test_without_a_seed_every_sequence_draws_its_own(driver):
    if driver.engine.info.engine == "tensorrt_llm":
        pytest.skip("its double draws nothing")
    await driver.run(*(request(handle, temperature=1.0, max_tokens=16) for handle in range(4)))
    assert len({tuple(driver.tokens[handle]) for handle in range(4)}) > 1


async def test_choices_of_one_prompt_are_sequences_like_any(driver):
    prompt = list(range(5, 5 + 70))
    params = {"temperature": 1.0, "max_tokens": 12, "group": 1}
    await driver.run(*(request(handle, prompt, seed=handle, **params) for handle in range(1, 5)))
    choices = [driver.tokens[handle] for handle in range(1, 5)]
    assert [len(each) for each in choices] == [12] * 4
    assert len({tuple(each) for each in choices}) > 1
    assert_idle(driver)
    await driver.run(*(request(handle + 10, prompt, seed=handle, **params) for handle in range(1, 5)))
    assert [driver.tokens[handle + 10] for handle in range(1, 5)] == choices


async def test_a_greedy_sequence_continued_elsewhere_goes_on_the_same(driver):
    driver.engine.submit([request(1, max_tokens=10)])
    await driver.finished(1)
    whole = driver.tokens[1]
    driver.engine.submit([request(2, [7, 8, 9, *whole[:4]], max_tokens=6)])
    await driver.finished(2)
    assert driver.tokens[2] == whole[4:]


async def test_a_stop_token_ends_the_sequence_and_is_not_delivered(driver):
    driver.engine.submit([request(1, max_tokens=12)])
    await driver.finished(1)
    whole = driver.tokens[1]
    stop = whole[5]
    driver.engine.submit([request(2, max_tokens=12, stop_token_ids=(stop,))])
    await driver.finished(2)
    assert driver.finish[2] == FinishReason.STOP
    assert driver.tokens[2] == whole[: whole.index(stop)]


async def test_nothing_ends_a_sequence_before_its_least_tokens(driver):
    await driver.run(request(1, max_tokens=12))
    stop = driver.tokens[1][0]
    await driver.run(
        request(2, max_tokens=12, stop_token_ids=(stop,)),
        request(3, max_tokens=12, stop_token_ids=(stop,), min_tokens=5),
        request(4, max_tokens=12, min_tokens=13),
    )
    assert (driver.finish[2], driver.tokens[2]) == (FinishReason.STOP, [])
    if not driver.engine.info.simulated:  # its worker has looked before
        assert (driver.finish[4], driver.tokens[4]) == (FinishReason.ERROR, [])
    if "min tokens" not in driver.offers:
        assert (driver.finish[3], driver.tokens[3]) == (FinishReason.ERROR, [])
        return
    assert stop not in driver.tokens[3]
    assert len(driver.tokens[3]) >= 5
    # A sequence that goes on elsewhere, as it would have gone on.
    begun = driver.tokens[3][:2]
    await driver.run(request(5, [7, 8, 9, *begun], resumed=2, max_tokens=10, stop_token_ids=(stop,), min_tokens=3))
    assert begun + driver.tokens[5] == driver.tokens[3]


async def test_bad_words_do_not_come(driver):
    if driver.engine.info.simulated:
        pytest.skip("its worker refuses them before it is asked")
    await driver.run(request(1, max_tokens=12))
    whole = driver.tokens[1]
    words = ((whole[0],), tuple(whole[4:6]))
    await driver.run(
        request(2, max_tokens=12, bad_words=words[:1]),
        request(3, max_tokens=12, bad_words=words[1:]),
        request(4, max_tokens=12),
    )
    assert driver.tokens[4] == whole
    if "bad words" not in driver.offers:
        assert [driver.finish[handle] for handle in (2, 3)] == [FinishReason.ERROR] * 2
        return
    assert whole[0] not in driver.tokens[2]
    assert words[1] not in zip(driver.tokens[3], driver.tokens[3][1:], strict=False)
    assert [len(driver.tokens[handle]) for handle in (2, 3)] == [12, 12]


async def test_the_context_bounds_the_output(driver):
    driver.engine.submit([request(1, [9] * 120, max_tokens=50)])
    await driver.finished(1)
    assert len(driver.tokens[1]) == 8
    assert driver.finish[1] == FinishReason.LENGTH


async def test_the_end_of_sequence_ends_unless_it_is_ignored(driver):
    if "logit bias" not in driver.offers:
        pytest.skip("the model's end cannot be provoked without a bias")
    bias = {EOS: 100.0}
    await driver.run(request(1, logit_bias=bias, ignore_eos=False), request(2, logit_bias=bias))
    assert (driver.finish[1], driver.tokens[1]) == (FinishReason.STOP, [])
    assert (driver.finish[2], driver.tokens[2]) == (FinishReason.LENGTH, [EOS] * 6)


@pytest.mark.parametrize(
    "impossible",
    [{"model": "other@1"}, {"prompt": []}, {"prompt": [9] * CONTEXT}, {"max_tokens": 0}],
    ids=["unknown model", "empty prompt", "too long", "no tokens"],
)
async def test_an_impossible_sequence_fails_alone(driver, impossible):
    driver.engine.submit([request(1), request(2, **impossible), request(3)])
    await driver.finished(1, 2, 3)
    assert driver.finish[2] == FinishReason.ERROR
    assert driver.errors[2]
    assert driver.tokens[2] == []
    assert len(driver.tokens[1]) == len(driver.tokens[3]) == 6
    assert_idle(driver)


async def test_cancel_ends_running_and_waiting_sequences_and_frees_their_memory(driver):
    handles = list(range(1, 9))
    driver.engine.submit([request(handle, max_tokens=30) for handle in handles])
    await driver.until(lambda: any(driver.tokens[handle] for handle in handles))
    driver.engine.cancel([*handles, 999])
    await driver.finished(*handles)
    driver.engine.cancel(handles)
    assert FinishReason.CANCELLED in driver.finish.values()
    assert set(driver.finish.values()) <= {FinishReason.CANCELLED, FinishReason.LENGTH}
    assert_idle(driver)
    driver.engine.submit([request(20)])
    await driver.finished(20)
    assert len(driver.tokens[20]) == 6


async def test_a_cancel_gives_memory_back_while_others_go_on(driver):
    driver.engine.submit([request(1, list(range(3, 97)), max_tokens=30), request(2, [40], max_tokens=120)])
    await driver.until(lambda: driver.tokens[1] and driver.tokens[2])
    before = driver.engine.capacity().free_blocks
    driver.engine.cancel([1])
    await driver.finished(1)
    # The step under way and the one in which the memory is given back.
    seen = len(driver.tokens[2])
    await driver.until(lambda: len(driver.tokens[2]) >= seen + 2 or 2 in driver.finish)
    assert driver.engine.capacity().free_blocks > before
    await driver.finished(2)
    assert len(driver.tokens[2]) == 120
    assert_idle(driver)


async def test_a_passed_deadline_is_an_outcome_of_its_own(driver):
    await driver.run(request(1, deadline=CLOCK.monotonic() - 1), request(2))
    assert (driver.finish[1], driver.tokens[1]) == (FinishReason.DEADLINE, [])
    assert driver.finish[2] == FinishReason.LENGTH
    assert_idle(driver)


async def test_a_deadline_ends_a_sequence_when_it_passes_and_not_before(driver):
    deadline = CLOCK.monotonic() + 0.02
    handles = range(8)
    driver.engine.submit([request(handle, [5 + handle], max_tokens=120, deadline=deadline) for handle in handles])
    await driver.until(lambda: FinishReason.DEADLINE in driver.finish.values() or len(driver.finish) == len(handles))
    if FinishReason.DEADLINE in driver.finish.values():
        assert CLOCK.monotonic() >= deadline
    await driver.finished(*handles)
    for handle in handles:
        whole = driver.finish[handle] == FinishReason.LENGTH
        assert whole or driver.finish[handle] == FinishReason.DEADLINE
        assert (len(driver.tokens[handle]) == 120) == whole
    assert_idle(driver)


async def test_the_more_urgent_of_those_who_wait_starts_first(driver):
    if "priorities" not in driver.offers:
        pytest.skip("runs in the order of arrival")
    running = [request(handle, [30 + handle], max_tokens=60) for handle in range(4)]
    waiting = [request(10 + number, [50], priority=number) for number in (3, 1, -1, 2)]
    await driver.run(*running, *waiting)
    order = [handle - 10 for handle in driver.started if handle >= 9]
    assert sorted(order) == [-1, 1, 2, 3]
    assert order[0] == -1
    assert order == sorted(order)


async def test_tenants_never_share_a_cached_prompt(driver):
    prompt = [20 + number % 50 for number in range(100)]
    before = driver.engine.capacity()
    await driver.run(request(1, prompt, cache_salt=b"acme"))
    await driver.run(request(2, prompt, cache_salt=b"acme"))
    await driver.run(request(3, prompt, cache_salt=b"bolt"))
    await driver.run(request(4, prompt))
    await driver.run(request(5, prompt, cache_salt=b"acme"))
    assert [driver.cached[handle] for handle in (1, 3, 4)] == [0, 0, 0]
    assert len({tuple(driver.tokens[handle]) for handle in range(1, 6)}) == 1
    if "prefix cache" not in driver.offers:
        assert driver.cached[2] == driver.cached[5] == 0
        return
    block = driver.engine.info.block_size
    for handle in (2, 5):
        assert 0 < driver.cached[handle] < len(prompt)
        assert driver.cached[handle] % block == 0
    after = driver.engine.capacity()
    assert after.prefix_hit_total - before.prefix_hit_total == sum(driver.cached.values())
    assert after.prefix_queried_total - before.prefix_queried_total == 5 * len(prompt)


async def test_logprobs_come_with_every_token_for_those_who_asked(driver):
    await driver.run(request(1, logprobs=2), request(2), request(3, logprobs=0))
    assert len(driver.logprobs[1]) == len(driver.logprobs[3]) == 6
    assert all(entry.top == [] for entry in driver.logprobs[3])
    assert 2 not in driver.logprobs
    for token, entry, alone in zip(driver.tokens[1], driver.logprobs[1], driver.logprobs[3], strict=True):
        assert len({each for each, _ in entry.top}) == len(entry.top) == 2
        assert [logprob for _, logprob in entry.top] == sorted((logprob for _, logprob in entry.top), reverse=True)
        assert sum(math.exp(logprob) for _, logprob in entry.top) <= 1 + 1e-3
        assert entry.logprob == pytest.approx(alone.logprob, abs=1e-4)
        # The model's own distribution: what greedy takes is its best.
        assert entry.logprob == pytest.approx(entry.top[0][1], abs=1e-6)
        assert 0 <= token < VOCABULARY


async def test_logprobs_are_of_the_distribution_before_any_sampling_parameter(driver):
    shaped = {"temperature": 0.5, "top_k": 3, "repetition_penalty": 1.5, "seed": 1, "logprobs": 3, "max_tokens": 1}
    await driver.run(request(1, logprobs=3, max_tokens=1), request(2, **shaped))
    raw, sampled = driver.logprobs[1][0].top, driver.logprobs[2][0].top
    if not driver.engine.info.simulated and driver.engine.info.engine != "tensorrt_llm":
        assert [token for token, _ in sampled] == [token for token, _ in raw]
    assert [logprob for _, logprob in sampled] == pytest.approx([logprob for _, logprob in raw], abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "text", "complete"),
    [
        ("regex", "[a-c]{3}x", lambda text: len(text) == 4 and set(text[:3]) <= set("abc") and text[3] == "x"),
        ("json_schema", '{"enum": ["yes", "no"]}', lambda text: text in ('"yes"', '"no"')),
        ("grammar", 'start: "(" inner ")"\ninner: "y" | "n"', lambda text: text in ("(y)", "(n)")),
    ],
    ids=["regex", "json schema", "grammar"],
)
async def test_a_structured_output_matches_and_stops(driver, kind, text, complete):
    structured = Structure(kind, text)
    await driver.run(
        request(1, structure=structured, max_tokens=40),
        request(2, max_tokens=40),
        request(3, structure=structured, max_tokens=40, temperature=1.0, seed=3, ignore_eos=False),
    )
    assert len(driver.tokens[2]) == 40
    for handle in (1, 3):
        if "structure" in driver.offers:
            assert driver.finish[handle] == FinishReason.STOP
            assert complete(text_of(driver.tokens[handle]))
        elif not driver.engine.info.simulated:
            assert (driver.finish[handle], driver.tokens[handle]) == (FinishReason.ERROR, [])
    assert_idle(driver)


async def test_a_structure_that_makes_no_sense_fails_alone(driver):
    if driver.engine.info.simulated:
        pytest.skip("looks at no structure")
    await driver.run(request(1), request(2, structure=Structure("regex", "(((")), request(3))
    assert driver.finish[2] == FinishReason.ERROR
    assert len(driver.tokens[1]) == len(driver.tokens[3]) == 6
    assert_idle(driver)


async def test_embeddings_are_unit_vectors_or_refused(driver):
    if "embeddings" not in driver.offers:
        with pytest.raises(EngineLoadError):
            await driver.engine.embed(MODEL, [[7]])
        return
    vectors = await driver.engine.embed(MODEL, [[7, 8], [9], [7, 8]])
    assert [sum(value * value for value in vector) for vector in vectors] == pytest.approx([1, 1, 1], abs=1e-4)
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-5)
    with pytest.raises(EngineLoadError):
        await driver.engine.embed("other@1", [[7]])


async def test_an_embedding_that_nobody_waits_for_holds_nobody_up(driver):
    if "embeddings" not in driver.offers:
        pytest.skip("offers no embeddings")
    work = driver.engine.embed(MODEL, [[7] * 30 for _ in range(64)])
    abandoned = asyncio.get_running_loop().create_task(work)
    await asyncio.sleep(0)
    abandoned.cancel()
    await driver.run(request(1))
    assert driver.finish[1] in (FinishReason.STOP, FinishReason.LENGTH)
    assert len(await driver.engine.embed(MODEL, [[7, 8]])) == 1
    await asyncio.wait((abandoned,))
    assert_idle(driver)


async def test_stop_ends_everything_and_later_submissions_fail(own_driver):
    driver = own_driver
    driver.engine.submit([request(handle, max_tokens=100) for handle in range(6)])
    await driver.engine.stop()
    await driver.engine.stop()
    await driver.finished(*range(6))
    assert set(driver.finish.values()) <= {FinishReason.CANCELLED, FinishReason.LENGTH}
    driver.engine.submit([request(77)])
    await driver.finished(77)
    assert driver.finish[77] == FinishReason.ERROR
