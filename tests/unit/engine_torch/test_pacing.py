"""How many prompt tokens fit beside decoding sequences within a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.engines.torch_engine.pacing import Pacer


def taught(target, *, decode=0.01, token=0.001, least=4, steps=60):
    """A pacer that has seen steps on a machine where decoding takes `decode` seconds and each prompt token `token`."""
    pacer = Pacer(target=target, least=least)
    for _ in range(steps):
        pacer.observe(decodes=3, prompt_tokens=0, seconds=decode)
        pacer.observe(decodes=3, prompt_tokens=20, seconds=decode + 20 * token)
    return pacer


def test_nothing_is_bounded_without_a_target_or_without_knowledge():
    assert taught(0.0).prompt_tokens() is None
    fresh = Pacer(target=0.05, least=4)
    assert fresh.prompt_tokens() is None
    fresh.observe(decodes=2, prompt_tokens=0, seconds=0.01)
    assert fresh.prompt_tokens() is None
    assert fresh.prompt_tokens_per_second == 0.0


def test_what_is_left_of_the_target_goes_to_prompts():
    pacer = taught(0.05)
    assert pacer.decode_seconds == pytest.approx(0.01)
    assert pacer.prompt_tokens_per_second == pytest.approx(1000)
    assert pacer.prompt_tokens() in (39, 40)


@pytest.mark.parametrize("target", [0.001, 0.0101])
def test_prompts_are_not_starved_by_a_target_that_cannot_be_met(target):
    assert taught(target).prompt_tokens() == 4


def test_steps_without_decoding_teach_the_rate_alone():
    pacer = Pacer(target=0.1, least=1)
    pacer.observe(decodes=0, prompt_tokens=100, seconds=0.2)
    assert (pacer.decode_seconds, pacer.prompt_tokens_per_second) == (0.0, pytest.approx(500))
    pacer.observe(decodes=0, prompt_tokens=0, seconds=9.0)  # idle
    assert (pacer.decode_seconds, pacer.prompt_tokens_per_second) == (0.0, pytest.approx(500))
    assert pacer.prompt_tokens() == 50


def test_it_follows_a_machine_that_becomes_slower():
    pacer = taught(0.05)
    for _ in range(60):
        pacer.observe(decodes=3, prompt_tokens=0, seconds=0.03)
        pacer.observe(decodes=3, prompt_tokens=20, seconds=0.07)
    assert pacer.decode_seconds == pytest.approx(0.03, rel=0.01)
    assert pacer.prompt_tokens() in (9, 10)


def test_one_slow_step_does_not_turn_it_over():
    pacer = taught(0.05)
    before = pacer.prompt_tokens()
    pacer.observe(decodes=3, prompt_tokens=20, seconds=0.01 + 20 * 0.002)
    assert before * 0.85 <= pacer.prompt_tokens() < before


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.floats(0, 1)), max_size=30),
    st.floats(0.001, 0.5),
    st.integers(1, 16),
)
def test_the_bound_is_always_usable(steps, target, least):
    pacer = Pacer(target=target, least=least)
    for decodes, prompt_tokens, seconds in steps:
        pacer.observe(decodes=decodes, prompt_tokens=prompt_tokens, seconds=seconds)
    bound = pacer.prompt_tokens()
    assert bound is None or bound >= least
