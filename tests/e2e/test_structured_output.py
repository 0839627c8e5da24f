"""Structured output from the public edge to a real model, with the official `openai` package and the native client."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest
from openai import OpenAI
from weir.client import Client, Parameters, Tls

from tests.support.mesh import Mesh

ASK: Any = [{"role": "user", "content": "Tell me of a river."}]
RIVER = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "length": {"type": "integer", "minimum": 1, "maximum": 9999},
        "banks": {"type": "array", "items": {"enum": ["left", "right"]}, "maxItems": 2},
    },
    "required": ["name", "length", "banks"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "river", "strict": True, "schema": RIVER}}


def check_river(text: str | None) -> None:
    river = json.loads(text or "")
    assert list(river) == ["name", "length", "banks"]
    assert 1 <= len(river["name"]) <= 12
    assert 1 <= river["length"] <= 9999
    assert set(river["banks"]) <= {"left", "right"}


@pytest.mark.parametrize("model", ["weir-fast", "weir-quality"])
def test_a_reply_is_a_document_of_the_schema(acme: OpenAI, model: str) -> None:
    done = acme.chat.completions.create(
        model=model, messages=ASK, response_format=FORMAT, max_tokens=200, n=3, temperature=1.0
    )
    assert [choice.finish_reason for choice in done.choices] == ["stop"] * 3
    for choice in done.choices:
        check_river(choice.message.content)


def test_a_stream_is_a_document_of_the_schema_and_stops(acme: OpenAI) -> None:
    stream = acme.chat.completions.create(
        model="weir-fast",
        messages=ASK,
        response_format=FORMAT,
        max_tokens=200,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    check_river("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_choice": ["left.", "right?"]}, r"left\.|right\?"),
        ({"structured_outputs": {"grammar": 'start: side ("," side){1,3}\nside: "l" | "r"'}}, "[lr](,[lr]){1,3}"),
        ({"guided_grammar": "start: /x+/ /y/", "max_tokens": 400}, "x+y"),
    ],
)  # fmt: skip
def test_h1_guided_outputs_are_what_was_asked_for(acme: OpenAI, fields: dict[str, Any], pattern: str) -> None:
    done = acme.chat.completions.create(model="weir-fast", messages=ASK, n=2, extra_body={"max_tokens": 80, **fields})
    for choice in done.choices:
        if choice.finish_reason == "stop":
            assert re.fullmatch(pattern, choice.message.content or "")
        else:
            assert set(choice.message.content or "") == {"x"}


def test_h1_an_answer_has_its_least_tokens_and_no_bad_word(acme: OpenAI) -> None:
    plain: Any = {"model": "weir-fast", "messages": ASK, "temperature": 0, "max_tokens": 40}
    said = acme.chat.completions.create(**plain).choices[0].message.content or ""
    word = max(re.findall(r"[a-z]+", said), key=len)
    done = acme.chat.completions.create(**plain, extra_body={"bad_words": [word], "min_tokens": 40})
    assert done.usage is not None
    assert (done.usage.completion_tokens, done.choices[0].finish_reason) == (40, "length")
    assert (done.choices[0].message.content or "") != said


def test_any_object(acme: OpenAI) -> None:
    done = acme.chat.completions.create(
        model="weir-fast",
        messages=ASK,
        response_format={"type": "json_object"},
        max_tokens=300,
        temperature=0,
    )
    text = done.choices[0].message.content or ""
    assert text.startswith("{")
    if done.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
    else:
        assert done.choices[0].finish_reason == "length"


def test_a_regular_expression(acme: OpenAI) -> None:
    code = r"[A-F]{2}-[0-9]{4}"
    for _ in range(3):
        done = acme.chat.completions.create(
            model="weir-fast", messages=ASK, max_tokens=60, extra_body={"structured_outputs": {"regex": code}}
        )
        assert re.fullmatch(code, done.choices[0].message.content or "")
        assert done.choices[0].finish_reason == "stop"
    legacy = acme.completions.create(
        model="weir-fast", prompt="Code:", max_tokens=60, extra_body={"structured_outputs": {"regex": code}}
    )
    assert re.fullmatch(code, legacy.choices[0].text)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objekt"}}}},
            "response_format.json_schema.schema",
            "Invalid type: objekt",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "is missing",
        ),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "structured_outputs.regex", "unclosed group"),
    ],
)
def test_a_malformed_structure_is_a_400_that_names_the_field(
    acme: OpenAI, fields: Any, field: str, message: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        acme.chat.completions.create(model="weir-fast", messages=ASK, stream=stream, **fields)
    assert caught.value.param == field


async def test_the_native_client(mesh: Mesh) -> None:
    tls = Tls(ca=mesh.env["WEIR_CA"], cert=mesh.env["WEIR_CLIENT_CERT"], key=mesh.env["WEIR_CLIENT_KEY"])
    async with Client("xds:///gateway.weir.internal", tls=tls) as client:
        done = await client.complete(
            "weir-fast", "A river:", timeout=30, parameters=Parameters(json_schema=RIVER, max_tokens=200)
        )
        check_river(done.text)
        async with client.generate(
            "weir-fast", "Yes or no?", timeout=30, parameters=Parameters(regex="yes|no", max_tokens=9)
        ) as stream:
            text = "".join([piece.text async for piece in stream])
    assert text in ("yes", "no")
