"""What every engine behind services/worker/engines/port.py must do."""

from __future__ import annotations

import pytest
from engine_cases import CLOCK, MODEL, Driver, request

from services.worker.engines.port import EngineLoadError, FinishReason


def assert_idle(driver: Driver) -> None:
    """All memory is back and nothing runs or waits."""
    load, info = driver.engine.capacity(), driver.engine.info
    assert (load.free_blocks, load.running, load.waiting, load.queued_prefill_tokens) == (info.total_blocks, 0, 0, 0)


async def test_info_names_the_models_and_sizes(driver):
    info = driver.engine.info
    assert info.models == (MODEL,)
    assert (info.block_size, info.total_blocks, info.max_running, info.max_context) == (4, 64, 4, 128)
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


async def test_a_seed_reproduces_and_another_differs(driver):
    params = {"temperature": 1.0, "max_tokens": 16}
    driver.engine.submit(
        [
            request(1, seed=5, **params),
            request(2, [30], **params),
            request(3, seed=5, **params),
            request(4, seed=6, **params),
        ]
    )
    await driver.finished(1, 2, 3, 4)
    assert driver.tokens[1] == driver.tokens[3]
    assert driver.tokens[1] != driver.tokens[4]


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


async def test_the_context_bounds_the_output(driver):
    driver.engine.submit([request(1, [9] * 120, max_tokens=50)])
    await driver.finished(1)
    assert len(driver.tokens[1]) == 8
    assert driver.finish[1] == FinishReason.LENGTH


@pytest.mark.parametrize(
    "impossible",
    [{"model": "other@1"}, {"prompt": []}, {"prompt": [9] * 128}],
    ids=["unknown model", "empty prompt", "too long"],
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


async def test_a_passed_deadline_is_an_outcome_of_its_own(driver):
    driver.engine.submit([request(1, deadline=CLOCK.monotonic() - 1), request(2)])
    await driver.finished(1, 2)
    assert driver.finish[1] == FinishReason.DEADLINE
    assert driver.finish[2] == FinishReason.LENGTH
    assert_idle(driver)


async def test_logprobs_come_with_every_token_for_those_who_asked(driver):
    driver.engine.submit([request(1, logprobs=2), request(2), request(3, logprobs=0)])
    await driver.finished(1, 2, 3)
    assert len(driver.logprobs[1]) == len(driver.logprobs[3]) == 6
    assert all(entry.logprob <= 0 and len(entry.top) == 2 for entry in driver.logprobs[1])
    assert all(entry.top == [] for entry in driver.logprobs[3])
    assert 2 not in driver.logprobs


async def test_embeddings_are_unit_vectors_or_refused(driver):
    if driver.engine.info.engine == "tensorrt_llm":
        with pytest.raises(EngineLoadError):
            await driver.engine.embed(MODEL, [[7]])
        return
    vectors = await driver.engine.embed(MODEL, [[7, 8], [9], [7, 8]])
    assert [sum(value * value for value in vector) for vector in vectors] == pytest.approx([1, 1, 1], abs=1e-4)
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-5)
    with pytest.raises(EngineLoadError):
        await driver.engine.embed("other@1", [[7]])


async def test_stop_ends_everything_and_later_submissions_fail(driver):
    driver.engine.submit([request(handle, max_tokens=100) for handle in range(6)])
    await driver.engine.stop()
    await driver.engine.stop()
    await driver.finished(*range(6))
    assert set(driver.finish.values()) <= {FinishReason.CANCELLED, FinishReason.LENGTH}
    driver.engine.submit([request(77)])
    await driver.finished(77)
    assert driver.finish[77] == FinishReason.ERROR
