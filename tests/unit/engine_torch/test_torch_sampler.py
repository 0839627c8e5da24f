"""Sampling: filters and penalties against transformers' processors, frequencies, independence of the batch."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transformers.generation import logits_process as processors

from services.worker.engines.port import SAMPLING_BOUNDS, SamplingParams
from services.worker.engines.torch_engine import sampler as sampler_module
from services.worker.engines.torch_engine.sampler import SequenceSampler, sample, uniform

SIZE = 40


def params(**changes):
    return SamplingParams(**({"max_tokens": 9} | changes))


def logits(seed=0, rows=1):
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(seed)) * 3


def draws(row, settings, count=4000):
    """How often each token is drawn at `count` positions."""
    state = SequenceSampler.create(settings, [], 11)
    found = Counter()
    for start in range(0, count, 500):
        results = sample(row.repeat(500, 1), [state] * 500, range(start, start + 500))
        found.update(result.token for result in results)
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"top_k": 12, "top_p": 0.8, "min_p": 0.05, "temperature": 1.7},
        {"temperature": 0.5, "top_p": 0.9},
        {"top_p": 1e-6},
        {},
    ],
)
def test_filters_leave_what_transformers_leaves_and_draw_in_proportion(settings):
    row = logits(3)
    expected = row.clone()
    for each in (
        processors.TemperatureLogitsWarper(settings.get("temperature", 1.0)),
        processors.TopKLogitsWarper(settings.get("top_k", SIZE)),
        processors.TopPLogitsWarper(settings.get("top_p", 1.0)),
        processors.MinPLogitsWarper(settings.get("min_p", 0.0)),
    ):
        expected = each(torch.zeros(1, 0, dtype=torch.long), expected)
    probabilities = torch.softmax(expected[0], dim=-1)
    found = draws(row, params(**settings))
    assert found.keys() <= set(torch.nonzero(probabilities).flatten().tolist())
    for token, probability in enumerate(probabilities.tolist()):
        # Five standard deviations of a share of 4000 draws.
        assert found[token] / 4000 == pytest.approx(probability, abs=5 * (probability / 4000) ** 0.5 + 1e-9)


def test_repetition_penalty_equals_transformers():
    row, prompt = logits(4), [3, 3, 7, 12]
    expected = processors.RepetitionPenaltyLogitsProcessor(1.4)(torch.tensor([prompt]), row.clone())
    state = SequenceSampler.create(params(temperature=0, repetition_penalty=1.4), prompt, 0)
    changed = row.clone()
    sample(changed, [state], [4])
    assert torch.allclose(changed, expected)


def test_presence_and_frequency_penalties_count_the_output_only():
    row = logits(5)
    settings = params(temperature=0, presence_penalty=0.5, frequency_penalty=0.25)
    state = SequenceSampler.create(settings, [1, 2, 3], 0)
    for token in (5, 5, 9):
        forced = torch.full((1, SIZE), -50.0)
        forced[0, token] = 50
        assert sample(forced, [state], [3])[0].token == token
    changed = row.clone()
    sample(changed, [state], [6])
    expected = row.clone()
    expected[0, 5] -= 0.5 + 2 * 0.25
    expected[0, 9] -= 0.5 + 0.25
    assert torch.allclose(changed, expected)


def test_logit_bias_bans_and_forces():
    row = torch.zeros(1, SIZE)
    forced = SequenceSampler.create(params(temperature=0, logit_bias={17: 5.0}), [], 0)
    assert sample(row.clone(), [forced], [0])[0].token == 17
    banned = params(logit_bias=dict.fromkeys(range(SIZE - 1), -100.0))
    assert draws(row, banned, 500) == {SIZE - 1: 500}


def test_logprobs_are_of_the_unchanged_distribution():
    row = logits(6)
    settings = params(temperature=0.3, top_k=2, logit_bias={0: 50.0}, logprobs=3)
    result = sample(row.clone(), [SequenceSampler.create(settings, [], 0)], [0])[0]
    own = torch.log_softmax(row[0], dim=-1)
    assert result.token == 0
    assert result.logprob.logprob == pytest.approx(own[0].item())
    assert [token for token, _ in result.logprob.top] == own.topk(3).indices.tolist()


def test_logprobs_zero_gives_the_chosen_token_only():
    result = sample(logits(), [SequenceSampler.create(params(logprobs=0), [], 0)], [0])[0]
    assert result.logprob.top == []


def test_a_row_does_not_depend_on_the_batch():
    rows = logits(7, rows=6)
    settings = [params(), params(temperature=0), params(top_p=0.6), params(top_k=3), params(min_p=0.2), params()]
    make = [lambda i=i, each=each: SequenceSampler.create(each, [1], 100 + i) for i, each in enumerate(settings)]
    together = [each.token for each in sample(rows.clone(), [build() for build in make], range(6))]
    alone = [sample(rows[i : i + 1].clone(), [make[i]()], [i])[0].token for i in range(6)]
    assert together == alone


def test_unusable_logits_fail_their_row_only():
    rows = logits(8, rows=3)
    rows[1, 4] = float("nan")
    states = [SequenceSampler.create(params(logprobs=1), [], 0) for _ in range(3)]
    results = sample(rows, states, [0, 0, 0])
    assert [each.token is None for each in results] == [False, True, False]
    assert results[1].logprob is None
    assert results[1].error == ""


@pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"top_p": 0.5}, {"top_k": 3, "min_p": 0.1}])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_unusable_logits_do_not_change_what_others_draw(settings, bad):
    rows = logits(8, rows=3)
    alone = sample(rows[2:].clone(), [SequenceSampler.create(params(**settings), [], 5)], [4])[0].token
    rows[:2, 4] = bad
    states = [SequenceSampler.create(params(**settings), [], 5) for _ in range(3)]
    assert [each.token for each in sample(rows, states, [4, 4, 4])] == [None, None, alone]


def test_tiny_temperatures_are_greedy_and_huge_ones_nearly_even():
    row = logits(9)
    best = row.argmax().item()
    assert draws(row, params(temperature=1e-9), 500) == {best: 500}
    assert draws(row, params(temperature=1e-4), 500) == {best: 500}
    assert len(draws(row, params(temperature=1e6), 4000)) == SIZE


def test_uniform_is_fixed_and_even():
    # Pinned: a stream that another worker resumes must draw what the interrupted one would have drawn.
    assert uniform(1, 0) == 0.36818951565166946
    assert uniform(1, 0) != uniform(1, 1)
    assert uniform(-1, 3) == uniform(2**64 - 1, 3)
    numbers = [uniform(seed, position) for seed in range(40) for position in range(100)]
    assert 0 <= min(numbers) < max(numbers) < 1
    assert sum(numbers) / 4000 == pytest.approx(0.5, abs=0.025)
    assert len(set(numbers)) == 4000


def test_a_draw_at_the_very_top_stays_inside_what_is_left(monkeypatch):
    monkeypatch.setattr(sampler_module, "uniform", lambda seed, position: 1 - 2.0**-53)
    row = logits(10)
    state = SequenceSampler.create(params(top_k=3), [], 0)
    kept = set(row[0].topk(3).indices.tolist())
    assert sample(row, [state], [0])[0].token == max(kept)


SETTINGS = st.builds(
    params,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 4, SIZE + 9]),
    top_p=st.sampled_from([0.2, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.4]),
    frequency_penalty=st.sampled_from([0.0, -0.5]),
    logit_bias=st.sampled_from([{}, {3: 4.0, 9: -100.0}]),
    logprobs=st.sampled_from([None, 0, 3]),
)


@hypothesis_settings(deadline=None, max_examples=40)
@given(batch=st.lists(st.tuples(SETTINGS, st.integers(0, 2**64 - 1), st.integers(0, 3)), min_size=1, max_size=6))
def test_the_outputs_of_a_sequence_do_not_depend_on_its_batch_or_on_when_it_moved(batch):
    prompt, steps = [1, 2, 3], 6

    def step(states, position):
        rows = torch.stack([logits(position * 100 + index)[0] for index, _ in states])
        return [each.token for each in sample(rows, [state for _, state in states], [position] * len(states))]

    together = [(i, SequenceSampler.create(each, prompt, seed)) for i, (each, seed, _) in enumerate(batch)]
    outputs = list(zip(*[step(together, len(prompt) + n) for n in range(steps)], strict=True))
    for index, (each, seed, moved) in enumerate(batch):
        alone = [(index, SequenceSampler.create(each, prompt, seed))]
        output = [step(alone, len(prompt) + n)[0] for n in range(moved)]
        # Another worker goes on: to it, the output so far is part of the prompt.
        resumed = SequenceSampler.create(each, [*prompt, *output], seed, resumed=moved)
        output += [step([(index, resumed)], len(prompt) + n)[0] for n in range(moved, steps)]
        assert tuple(output) == outputs[index]


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("drawn", [False, True])
def test_e5_every_value_within_bounds_leaves_logits_finite(end, scale, drawn):
    changes = {name: bounds[end] for name, bounds in SAMPLING_BOUNDS.items() if name != "logit_bias"}
    changes["top_p"] = max(changes["top_p"], 1e-38)
    if drawn:
        changes["temperature"] = max(changes["temperature"], 1e-4)
    biases = dict.fromkeys(range(4), SAMPLING_BOUNDS["logit_bias"][end])
    rows = logits(32, rows=2) * scale
    prompt = [1, 2, 3]
    states = [SequenceSampler.create(params(logit_bias=biases, **changes), prompt, seed) for seed in range(2)]
    for place in range(20):
        for each in sample(rows.clone(), states, [place, place]):
            assert each.token is not None
            assert 0 <= each.token < rows.shape[1]
