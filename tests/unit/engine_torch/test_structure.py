"""Structured output: what is chosen always spells, or begins, a document that matches; ends; resumption; faults."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from libs.structured_output import MAX_BYTES
from services.worker.engines.port import EngineLoadError, SamplingParams, Structure
from services.worker.engines.torch_engine.sampler import SequenceSampler, sample
from services.worker.engines.torch_engine.structure import StructureError, Structures, accept, allowed
from services.worker.model_files import ModelFiles

DEMO = Path("models/demo/fast")
VOCABULARY, EOS = 2048, (1, 5)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PERSON_SCHEMA = Structure("json_schema", json.dumps(PERSON))
DATE = Structure("regex", r"[12][0-9]{3}-[01][0-9]")


@pytest.fixture(scope="module")
def structures():
    return Structures.load(ModelFiles(DEMO), vocabulary=VOCABULARY, eos_token_ids=EOS)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def params(structure, **changes):
    return SamplingParams(**({"max_tokens": 200, "structure": structure} | changes))


def noise(seed, position):
    return torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed * 1009 + position)) * 2


def run(structures, structure, *, seed=0, count=200, prompt=(7, 8), resumed=0, **changes):
    """Tokens of the output, and whether it ended by itself; the model is noise."""
    settings_ = params(structure, **changes)
    state = SequenceSampler.create(settings_, prompt, seed, matcher=structures.matcher(structure), resumed=resumed)
    tokens = []
    for position in range(len(prompt), len(prompt) + count):
        result = sample(noise(seed, position), [state], [position])[0]
        assert result.error == ""
        if result.token not in EOS:
            tokens.append(result.token)
        if result.ends:
            return tokens, True
        assert result.token not in EOS
    return tokens, False


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), temperature=st.sampled_from([0.0, 0.7, 1.5]), top_p=st.sampled_from([0.5, 1.0]))
def test_an_output_is_a_document_of_the_schema(structures, tokenizer, seed, temperature, top_p):
    tokens, ended = run(structures, PERSON_SCHEMA, seed=seed, temperature=temperature, top_p=top_p)
    assert ended
    document = json.loads(tokenizer.decode(tokens))
    assert list(document) == ["name", "age", "tags"]
    assert len(document["name"]) <= 5
    assert 0 <= document["age"] <= 150
    assert len(document["tags"]) <= 2
    assert set(document["tags"]) <= {"a", "b"}


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), cut=st.integers(1, 30))
def test_every_prefix_can_be_completed(structures, tokenizer, seed, cut):
    tokens, _ = run(structures, PERSON_SCHEMA, seed=seed, count=cut)
    matcher = structures.matcher(PERSON_SCHEMA)
    matcher.replay(tokens)
    # Going on with the allowed token of the fewest characters, every document ends.
    for _ in range(60):
        bits = np.unpackbits(allowed([matcher])[0], bitorder="little")[:VOCABULARY].nonzero()[0].tolist()
        closing = [t for t in bits if t in EOS] or sorted(bits, key=lambda t: (len(tokenizer.decode([t])), t != 7, t))
        accept([matcher], [closing[0]])
        if closing[0] in EOS:
            break
        tokens.append(closing[0])
    json.loads(tokenizer.decode(tokens))
    assert matcher.complete


def test_a_regular_expression_is_matched_and_ends_with_its_last_token(structures, tokenizer):
    for seed in range(10):
        tokens, ended = run(structures, DATE, seed=seed, ignore_eos=True)
        assert ended
        assert re.fullmatch(DATE.text, tokenizer.decode(tokens))
        assert not set(tokens) & set(EOS)


def test_the_end_is_offered_exactly_where_the_output_may_stop(structures):
    matcher = structures.matcher(Structure("regex", "a(bc)*"))
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    may_stop = []
    for letter in "abcbc":
        accept([matcher], [tokenizer.token_to_id(letter)])
        bits = np.unpackbits(allowed([matcher])[0], bitorder="little")
        assert bits[EOS[0]] == bits[EOS[1]]
        may_stop.append(bool(bits[EOS[0]]))
        assert not matcher.complete
    assert may_stop == [True, False, True, False, True]
    accept([matcher], [EOS[1]])
    assert matcher.complete
    assert matcher.ends(EOS[1])


def test_an_end_chosen_by_the_model_ends_the_output_though_ends_are_ignored(structures):
    state = SequenceSampler.create(
        params(Structure("regex", "a*"), temperature=0, ignore_eos=True), [7], 0,
        matcher=structures.matcher(Structure("regex", "a*")),
    )  # fmt: skip
    logits = torch.zeros(1, VOCABULARY)
    logits[0, EOS[0]] = 9
    result = sample(logits, [state], [1])[0]
    assert (result.token, result.ends) == (EOS[0], True)


def test_constrained_and_free_rows_share_a_batch(structures):
    """Also: log-probabilities stay those of the model, and a broken row harms nobody."""
    free = SamplingParams(max_tokens=9, temperature=0.8)
    digits = Structure("regex", "[0-9]+")
    make = [
        lambda: SequenceSampler.create(free, [7], 1),
        lambda: SequenceSampler.create(params(digits, logprobs=2), [7], 2, matcher=structures.matcher(digits)),
        lambda: SequenceSampler.create(params(DATE, temperature=0), [7], 3, matcher=structures.matcher(DATE)),
        lambda: SequenceSampler.create(params(DATE), [7], 4, matcher=structures.matcher(DATE)),
    ]
    rows = torch.cat([noise(seed, 1) for seed in range(4)])
    rows[3] = float("nan")
    together = sample(rows.clone(), [each() for each in make], [1] * 4)
    alone = [sample(rows[i : i + 1].clone(), [each()], [1])[0] for i, each in enumerate(make)]
    assert together == alone
    assert together[3].token is None
    own = torch.log_softmax(rows[1], dim=-1)
    assert together[1].logprob.logprob == pytest.approx(own[together[1].token].item())
    assert [token for token, _ in together[1].logprob.top] == own.topk(2).indices.tolist()


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1000), moved=st.integers(1, 25))
def test_a_resumed_output_goes_on_where_it_was(structures, seed, moved):
    whole, _ = run(structures, PERSON_SCHEMA, seed=seed)
    first = whole[:moved]
    rest, ended = run(structures, PERSON_SCHEMA, seed=seed, prompt=(7, 8, *first), resumed=len(first))
    assert first + rest == whole
    assert ended


def test_a_resumed_output_that_does_not_match_is_refused(structures):
    with pytest.raises(StructureError, match="from token 1 on"):
        SequenceSampler.create(params(DATE), [7, 22, 40], 0, matcher=structures.matcher(DATE), resumed=2)


def test_an_output_that_becomes_too_complex_fails_alone(structures):
    wide = Structure("json_schema", json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(900)}}))
    states = [
        SequenceSampler.create(params(each, temperature=0), [7], 0, matcher=structures.matcher(each))
        for each in (wide, DATE)
    ]
    results = sample(torch.zeros(2, VOCABULARY), states, [1, 1])
    for _ in range(3):
        if results[0].token is None:
            break
        results = sample(torch.zeros(2, VOCABULARY), states, [2, 2])
    assert results[0].token is None
    assert results[0].error.startswith("the structured output cannot go on: ")
    assert "\n" not in results[0].error
    assert results[1].token is not None


@pytest.mark.parametrize("structure", [Structure("json_schema", '{"type": "objekt"}'), Structure("regex", "(")])
def test_a_bad_structure_is_told_to_its_caller(structures, structure):
    with pytest.raises(StructureError, match=r"Invalid type: objekt|unclosed group"):
        structures.matcher(structure)


def test_a_long_structure_is_refused_before_any_work(structures):
    with pytest.raises(StructureError, match="at most"):
        structures.matcher(Structure("regex", "a" * (MAX_BYTES + 1)))


def test_matchers_of_one_structure_are_independent(structures):
    first, second = structures.matcher(DATE), structures.matcher(DATE)
    accept([first, second], [22, 23])
    assert not first.error
    accept([first], [EOS[0]])
    assert first.error
    assert not second.error


@pytest.mark.parametrize("content", [None, "{", '{"model": 3}'])
def test_a_missing_or_broken_tokenizer_is_named_when_a_structure_is_asked_for(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    structures = Structures.load(ModelFiles(tmp_path), vocabulary=VOCABULARY, eos_token_ids=EOS)
    with pytest.raises(EngineLoadError, match=re.escape(str(tmp_path / "tokenizer.json"))):
        structures.matcher(DATE)


def test_a_model_without_an_end_offers_no_structure():
    with pytest.raises(EngineLoadError, match="end of sequence"):
        Structures.load(ModelFiles(DEMO), vocabulary=VOCABULARY, eos_token_ids=()).matcher(DATE)


@pytest.mark.parametrize("vocabulary", [2048, 2049, 4096, 1800])
def test_logits_may_be_wider_or_narrower_than_the_tokenizer(vocabulary):
    structures = Structures.load(ModelFiles(DEMO), vocabulary=vocabulary, eos_token_ids=EOS)
    state = SequenceSampler.create(params(DATE, temperature=2.0), [7], 0, matcher=structures.matcher(DATE))
    for position in range(1, 8):
        result = sample(torch.zeros(1, vocabulary), [state], [position])[0]
        assert 21 <= result.token <= 30 or result.token == 18 or position in (5, 6, 7)
    assert result.ends
