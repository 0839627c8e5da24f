"""Structured output through the whole core of the torch engine, on a demo model: ends, faults, preemption, moves."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from support_checkpoints import make_core, request, run
from tokenizers import Tokenizer

from services.worker.engines.port import FinishReason, Structure

DEMO = Path(__file__).parents[3] / "models" / "demo" / "fast"
MODEL = "weir-fast@1"
CODE = Structure("regex", "[a-f]{6}[0-9]{2}")
PLACE = Structure(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "depth": {"type": "integer", "maximum": 99}},
            "required": ["name", "depth"],
            "additionalProperties": False,
        }
    ),
)


@pytest.fixture(scope="module")
def core():
    return make_core({MODEL: DEMO}, block_size=16, max_running=16)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def ask(handle, structure, *, resumed=0, prompt=(7, 8, 9), **params):
    chosen = {"max_tokens": 100, "temperature": 0.9, "seed": handle, "structure": structure} | params
    return dataclasses.replace(request(handle, list(prompt), model=MODEL, **chosen), resumed=resumed)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_outputs_match_and_stop(core, tokenizer, temperature, ignore_eos):
    settings = {"temperature": temperature, "ignore_eos": ignore_eos}
    asked = [ask(i, CODE if i % 2 else PLACE, **settings) for i in range(6)] + [ask(9, None, max_tokens=30)]
    done = run(core, asked)
    assert {done.finish[i] for i in range(6)} == {FinishReason.STOP}
    for i in range(6):
        text = tokenizer.decode(done.tokens[i])
        if i % 2:
            assert re.fullmatch(CODE.text, text)
        else:
            assert set(json.loads(text)) == {"name", "depth"}
    assert done.errors == {}


def test_a_document_complete_at_the_last_token_stops(core):
    tokens = run(core, [ask(1, CODE)]).tokens[1]
    done = run(core, [ask(1, CODE, max_tokens=len(tokens))])
    assert (done.tokens[1], done.finish[1]) == (tokens, FinishReason.STOP)
    cut = run(core, [ask(1, CODE, max_tokens=len(tokens) - 1)])
    assert (cut.tokens[1], cut.finish[1]) == (tokens[:-1], FinishReason.LENGTH)


def test_a_bad_structure_fails_its_sequence_alone(core):
    done = run(
        core, [ask(1, Structure("json_schema", '{"type": "objekt"}')), ask(2, CODE), ask(3, Structure("regex", "("))]
    )
    assert done.finish == {1: FinishReason.ERROR, 2: FinishReason.STOP, 3: FinishReason.ERROR}
    assert "Invalid type: objekt" in done.errors[1]
    assert "unclosed group" in done.errors[3]


def test_an_output_that_becomes_too_complex_fails_alone_and_says_so(core):
    wide = Structure("json_schema", json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(900)}}))
    done = run(core, [ask(1, wide), ask(2, CODE)])
    assert done.finish == {1: FinishReason.ERROR, 2: FinishReason.STOP}
    assert done.errors[1].startswith("the structured output cannot go on: ")


@pytest.mark.parametrize("structure", [CODE, PLACE])
def test_a_moved_sequence_goes_on_in_its_structure(core, structure):
    whole = run(core, [ask(1, structure)]).tokens[1]
    for moved in (1, len(whole) // 2, len(whole) - 1, len(whole)):
        prompt = [7, 8, 9, *whole[:moved]]
        done = run(core, [ask(1, structure, prompt=prompt, resumed=moved)])
        assert whole[:moved] + done.tokens[1] == whole
        assert done.finish[1] == FinishReason.STOP


def test_a_move_into_another_structure_is_an_error(core):
    done = run(core, [ask(1, CODE, prompt=[7, 8, 9, 10, 11], resumed=2)])
    assert done.finish[1] == FinishReason.ERROR
    assert "does not match" in done.errors[1]


def test_preemption_changes_nothing(core):
    asked = [ask(i, PLACE if i % 2 else CODE, frequency_penalty=0.3) for i in range(8)]
    free = run(core, asked)
    tight = make_core({MODEL: DEMO}, block_size=4, total_blocks=24, max_running=8)
    assert run(tight, asked).tokens == free.tokens
    assert tight.capacity().preemptions_total > 0
