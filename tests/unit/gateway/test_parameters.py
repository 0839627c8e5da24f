"""Parameters are checked, defaulted and limited, and every refusal names its field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.catalog import ModelLimits
from libs.errors import Reason, WeirError
from services.gateway.policy.parameters import bind_parameters, check_parameters
from services.gateway.policy.spec import Parameters

LIMITS = ModelLimits(context_length=100, default_max_tokens=20, default_temperature=0.7, default_top_p=0.9)


@pytest.mark.parametrize(
    ("given_", "field"),
    [
        (Parameters(max_tokens=0), "max_tokens"),
        (Parameters(max_tokens=-3, max_tokens_field="max_completion_tokens"), "max_completion_tokens"),
        (Parameters(temperature=2.1), "temperature"),
        (Parameters(temperature=float("nan")), "temperature"),
        (Parameters(top_p=-0.1), "top_p"),
        (Parameters(logit_bias=dict.fromkeys(range(1025), 0.0)), "logit_bias"),
        (Parameters(top_p=1.5), "top_p"),
        (Parameters(min_p=-0.1), "min_p"),
        (Parameters(top_k=-1), "top_k"),
        (Parameters(n=0), "n"),
        (Parameters(n=9), "n"),
        (Parameters(logprobs=21), "logprobs"),
        (Parameters(min_tokens=-1), "min_tokens"),
        (Parameters(stop_token_ids=tuple(range(129))), "stop_token_ids"),
        (Parameters(stop_token_ids=(-1,)), "stop_token_ids"),
        (Parameters(stop_token_ids=(2**32,)), "stop_token_ids"),
        (Parameters(bad_words=("a",) * 129), "bad_words"),
        (Parameters(bad_words=("a", "")), "bad_words"),
        (Parameters(bad_words=(" \n",)), "bad_words"),
        (Parameters(bad_words=("a" * 65,)), "bad_words"),
        (Parameters(presence_penalty=3.0), "presence_penalty"),
        (Parameters(frequency_penalty=-3.0), "frequency_penalty"),
        (Parameters(repetition_penalty=0.0), "repetition_penalty"),
        (Parameters(stop=("a",) * 5), "stop"),
        (Parameters(stop=("",)), "stop"),
        (Parameters(logit_bias={1: 101.0}), "logit_bias"),
        (Parameters(logit_bias={1: float("nan")}), "logit_bias"),
        # Integers that no float and no wire field can hold.
        (Parameters(max_tokens=10**400), "max_tokens"),
        (Parameters(seed=10**400), "seed"),
        (Parameters(seed=2**63), "seed"),
        (Parameters(seed=-(2**63) - 1), "seed"),
        (Parameters(top_k=10**400), "top_k"),
        (Parameters(n=-(10**400)), "n"),
        (Parameters(logprobs=10**400), "logprobs"),
    ],
)
def test_a_bad_value_is_refused_by_name(given_: Parameters, field: str) -> None:
    with pytest.raises(WeirError) as caught:
        check_parameters(given_)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.limit == field


def test_defaults_come_from_the_model() -> None:
    bound = bind_parameters(Parameters(), LIMITS, prompt_tokens=10)
    assert (bound.max_tokens, bound.temperature, bound.top_p, bound.n) == (20, pytest.approx(0.7), 0.9, 1)


def test_zero_temperature_is_a_choice_and_not_a_missing_value() -> None:
    assert bind_parameters(Parameters(temperature=0.0), LIMITS, prompt_tokens=1).temperature == 0.0


@pytest.mark.parametrize(("seed", "bound"), [(None, None), (7, 7), (-1, 2**64 - 1), (-(2**63), 2**63)])
def test_h4_a_negative_seed_is_a_seed_like_any(seed: int | None, bound: int | None) -> None:
    check_parameters(Parameters(seed=seed))
    assert bind_parameters(Parameters(seed=seed), LIMITS, prompt_tokens=1).seed == bound


@pytest.mark.parametrize(("given_", "prompt"), [({"max_tokens": 4}, 1), ({}, 1), ({}, 97)])
def test_no_output_can_be_shorter_than_its_least(given_: dict[str, int], prompt: int) -> None:
    most = bind_parameters(Parameters(**given_), LIMITS, prompt).max_tokens
    assert bind_parameters(Parameters(min_tokens=most, **given_), LIMITS, prompt).min_tokens == most
    with pytest.raises(WeirError) as caught:
        bind_parameters(Parameters(min_tokens=most + 1, **given_), LIMITS, prompt)
    assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, "min_tokens")


def test_a_default_output_shrinks_to_the_room() -> None:
    assert bind_parameters(Parameters(), LIMITS, prompt_tokens=95).max_tokens == 5


def test_an_explicit_output_that_does_not_fit_is_refused() -> None:
    with pytest.raises(WeirError) as caught:
        bind_parameters(Parameters(max_tokens=91), LIMITS, prompt_tokens=10)
    assert caught.value.reason is Reason.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.limit == "max_tokens"


def test_a_prompt_past_the_context_is_refused() -> None:
    with pytest.raises(WeirError, match="100 tokens") as caught:
        bind_parameters(Parameters(), LIMITS, prompt_tokens=100)
    assert caught.value.reason is Reason.CONTEXT_LENGTH_EXCEEDED


def test_what_a_caller_leaves_open_is_as_the_model_has_it() -> None:
    limits = ModelLimits(
        context_length=100,
        default_max_tokens=20,
        default_temperature=0.7,
        default_top_p=0.8,
        default_top_k=20,
        default_min_p=0.1,
        default_repetition_penalty=1.1,
    )
    open_ = bind_parameters(Parameters(), limits, prompt_tokens=10)
    assert (open_.top_k, open_.min_p, open_.repetition_penalty) == (20, 0.1, 1.1)
    said = bind_parameters(Parameters(top_k=0, min_p=0.0, repetition_penalty=1.0), limits, prompt_tokens=10)
    assert (said.top_k, said.min_p, said.repetition_penalty) == (0, 0.0, 1.0)
    assert bind_parameters(Parameters(), LIMITS, prompt_tokens=10).repetition_penalty == 1.0


def test_the_tenants_limits_bind_below_the_models() -> None:
    limits = ModelLimits(
        context_length=100,
        default_max_tokens=20,
        default_temperature=1.0,
        default_top_p=1.0,
        max_context=30,
        max_output=5,
    )
    assert bind_parameters(Parameters(), limits, prompt_tokens=10).max_tokens == 5
    with pytest.raises(WeirError) as caught:
        bind_parameters(Parameters(max_tokens=6), limits, prompt_tokens=10)
    assert caught.value.limit == "max_tokens"
    with pytest.raises(WeirError) as caught:
        bind_parameters(Parameters(), limits, prompt_tokens=30)
    assert caught.value.reason is Reason.CONTEXT_LENGTH_EXCEEDED


@given(
    prompt=st.integers(1, 150),
    asked=st.none() | st.integers(1, 150),
    max_context=st.integers(0, 150),
    max_output=st.integers(0, 150),
)
def test_whatever_is_bound_fits(prompt: int, asked: int | None, max_context: int, max_output: int) -> None:
    limits = ModelLimits(
        context_length=100,
        default_max_tokens=20,
        default_temperature=1.0,
        default_top_p=1.0,
        max_context=max_context,
        max_output=max_output,
    )
    try:
        bound = bind_parameters(Parameters(max_tokens=asked), limits, prompt)
    except WeirError:
        return
    assert bound.max_tokens >= 1
    assert prompt + bound.max_tokens <= min(100, max_context or 100)
    assert bound.max_tokens <= (max_output or 150)
    assert asked is None or bound.max_tokens == asked
