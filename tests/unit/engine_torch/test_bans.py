"""Tokens that may not come: ends that come too early and bad words, alone, in a batch, after a move, in a structure."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLTokenizer

from services.worker.engines.port import SamplingParams, Structure
from services.worker.engines.torch_engine.bans import BARRED, Bans, bar
from services.worker.engines.torch_engine.sampler import SequenceSampler, sample
from services.worker.engines.torch_engine.structure import Structures

SIZE = 8
END = 7
LIKELY = [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 8.0]
"""Of each token: the end first, then 0, 1 and so on."""


def state(prompt=(1,), resumed=0, ends=(END,), matcher=None, **params):
    settings = SamplingParams(**{"max_tokens": 50, "temperature": 0.0} | params)
    return SequenceSampler.create(settings, list(prompt), 5, resumed=resumed, ends=ends, matcher=matcher)


def greedy(sampler, count, likely=LIKELY):
    found = []
    for position in range(count):
        (result,) = sample(torch.tensor([likely]), [sampler], [position])
        found.append(result.token)
    return found


def test_nothing_ends_before_so_many_tokens():
    assert greedy(state(min_tokens=3), 5) == [0, 0, 0, END, END]
    assert greedy(state(min_tokens=2, ends=(END, 0)), 3) == [1, 1, END]


def test_once_nothing_is_barred_any_more_the_quick_way_is_taken():
    sampler = state(min_tokens=2)
    assert not sampler.plain
    greedy(sampler, 2)
    assert sampler.plain
    assert state().plain
    forever = state(bad_words=((3,),))
    greedy(forever, 4)
    assert not forever.plain


@pytest.mark.parametrize("temperature", [0.0, 0.2, 1.5])
def test_bad_words_do_not_come(temperature):
    words = ((END,), (0, 0), (0, 1, 2), (1, 0, 1))
    tokens = greedy(state(temperature=temperature, bad_words=words), 300)
    assert END not in tokens
    for word in words:
        assert all(tuple(tokens[at : at + len(word)]) != word for at in range(len(tokens)))


def test_a_word_of_the_prompt_is_no_beginning_but_what_was_output_before_is():
    word = {"bad_words": ((END,), (3, 0))}
    assert greedy(state(prompt=(2, 3), **word), 1) == [0]
    assert greedy(state(prompt=(2, 3), resumed=1, **word), 1) == [1]
    assert greedy(state(prompt=(3, 2), resumed=1, **word), 1) == [0]


def test_each_row_has_its_own_bans():
    rows = [state(), state(min_tokens=1), state(bad_words=((END,), (0,))), state(min_tokens=1, logprobs=1)]
    found = [each.token for each in sample(torch.tensor([LIKELY] * 4), rows, [0] * 4)]
    assert found == [END, 0, 1, 0]
    found = [each.token for each in sample(torch.tensor([LIKELY] * 4), rows, [1] * 4)]
    assert found == [END, END, 1, END]


def test_log_probabilities_are_the_models_own():
    (result,) = sample(torch.tensor([LIKELY]), [state(min_tokens=1, logprobs=1)], [0])
    assert (result.token, result.logprob.top[0][0]) == (0, END)


def test_where_everything_is_barred_something_comes_all_the_same():
    assert greedy(state(bad_words=tuple((token,) for token in range(SIZE))), 2) == [0, 0]


@given(
    words=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), max_size=8),
    output=st.lists(st.integers(0, 3), max_size=12),
    began=st.integers(0, 12),
    least=st.integers(0, 4),
)
def test_what_is_barred_is_what_would_complete_a_word(words, output, began, least):
    before, after = output[:began], output[began:]
    bans = Bans(words, before, ends=[END], least=least)
    for token in after:
        bans.add(token)
    ends = {END} if len(after) < least else set()
    complete = {word[-1] for word in words if len(word) == 1 or tuple(output[1 - len(word) :]) == word[:-1]}
    assert set(bans.now()) == ends | complete


def test_no_other_row_and_no_other_token_is_touched():
    logits = torch.zeros(3, SIZE)
    bar(logits, [None, Bans([(2,)], [], ends=[], least=0), None])
    assert (logits == BARRED).nonzero().tolist() == [[1, 2]]
    assert logits.count_nonzero() == 1


@pytest.fixture(scope="module")
def structures():
    tokenizer = LLTokenizer("byte")
    return Structures(tokenizer, [tokenizer.eos_token])


def text_of(structures, structure, **params):
    """The greedy output where the end is the likeliest token, then "a", then the others."""
    tokenizer = structures._tokenizer
    likely = torch.arange(tokenizer.vocab_size, 0, -1).float()
    likely[ord("a")], likely[tokenizer.eos_token] = 1000.0, 2000.0
    sampler = state(matcher=structures.matcher(structure), structure=structure, ends=[tokenizer.eos_token], **params)
    tokens = []
    for position in range(40):
        (result,) = sample(likely.clone().unsqueeze(0), [sampler], [position])
        if result.token != tokenizer.eos_token:
            tokens.append(result.token)
        if result.ends or result.token is None:
            break
    return bytes(tokens).decode(), result


def test_a_structure_may_stop_only_after_so_many_tokens_but_ends_when_it_is_complete(structures):
    assert text_of(structures, Structure("regex", "[ab]*"))[0] == ""
    assert text_of(structures, Structure("regex", "[ab]*"), min_tokens=5)[0] == "aaaaa"
    text, result = text_of(structures, Structure("regex", "[ab]{2}"), min_tokens=5)
    assert (text, result.ends, result.error) == ("aa", True, "")
    text, result = text_of(structures, Structure("grammar", 'start: ""'), min_tokens=5)
    assert (text, result.ends, result.error) == ("", True, "")


def test_a_bad_word_comes_where_the_structure_leaves_nothing_else(structures):
    word = {"bad_words": ((ord("a"),),)}
    assert text_of(structures, Structure("grammar", 'start: "a" | "b"'))[0] == "a"
    assert text_of(structures, Structure("grammar", 'start: "a" | "b"'), **word)[0] == "b"
    assert text_of(structures, Structure("grammar", 'start: "xa"'), **word)[0] == "xa"
