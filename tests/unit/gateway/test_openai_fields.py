"""Every field that the API and its dialects know has a verdict, and the verdict is what happens."""

import inspect
import json
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from openai.types import completion_create_params as completions
from openai.types import embedding_create_params as embeddings
from openai.types.chat import chat_completion_assistant_message_param as assistant
from openai.types.chat import chat_completion_message_function_tool_call_param as tool_call
from openai.types.chat import chat_completion_stream_options_param as stream_options
from openai.types.chat import chat_completion_system_message_param as system
from openai.types.chat import chat_completion_tool_message_param as tool
from openai.types.chat import chat_completion_user_message_param as user
from openai.types.chat import completion_create_params as chats
from openai.types.shared_params import response_format_json_schema as response_format

from libs.errors import Reason, WeirError
from services.gateway.openai import bodies
from services.gateway.openai.fields import CHAT, COMPLETION, EMBEDDING, Field, Verdict, refused
from services.gateway.openai.requests import parse_chat, parse_completion, parse_embedding

MESSAGE = {"role": "user", "content": "hi"}
KINDS: dict[str, tuple[tuple[Field, ...], Any, dict[str, object]]] = {
    "chat": (CHAT, parse_chat, {"model": "m", "messages": [MESSAGE]}),
    "completion": (COMPLETION, parse_completion, {"model": "m", "prompt": "hi"}),
    "embedding": (EMBEDDING, parse_embedding, {"model": "m", "input": "hi"}),
}
# Of the package's major 3 (3.3.1), read in its types when this was written; the tests may have an older one.
NEWEST = {
    "messages", "model", "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
    "top_logprobs", "max_completion_tokens", "max_tokens", "metadata", "modalities", "moderation", "n",
    "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier",
    "stop", "store", "stream", "stream_options", "temperature", "tool_choice", "tools", "top_p", "user", "verbosity",
    "web_search_options",
}  # fmt: skip


def names(fields: tuple[Field, ...], within: str = "") -> set[str]:
    return {field.name for field in fields if field.within == within}


def typed(module: ModuleType, prefix: str) -> set[str]:
    """The names in a module's typed dictionaries that begin so."""
    classes = [each for name, each in inspect.getmembers(module, inspect.isclass) if name.startswith(prefix)]
    return {name for each in classes for name in getattr(each, "__annotations__", {})}


@pytest.mark.parametrize(
    ("fields", "within", "module", "prefix"),
    [
        (CHAT, "", chats, "CompletionCreateParams"),
        (COMPLETION, "", completions, "CompletionCreateParams"),
        (EMBEDDING, "", embeddings, "EmbeddingCreateParams"),
        (CHAT, "stream_options", stream_options, "ChatCompletionStreamOptions"),
        (CHAT, "messages[]", assistant, "ChatCompletionAssistantMessage"),
        (CHAT, "messages[]", tool, "ChatCompletionToolMessage"),
        (CHAT, "messages[]", system, "ChatCompletionSystemMessage"),
        (CHAT, "messages[]", user, "ChatCompletionUserMessage"),
        (CHAT, "messages[].tool_calls[]", tool_call, "ChatCompletionMessageFunctionToolCall"),
        (CHAT, "messages[].tool_calls[].function", tool_call, "Function"),
        (CHAT, "response_format", response_format, "ResponseFormatJSONSchema"),
        (CHAT, "response_format.json_schema", response_format, "JSONSchema"),
    ],
)
def test_every_parameter_of_the_official_client_has_a_verdict(
    fields: tuple[Field, ...], within: str, module: ModuleType, prefix: str
) -> None:
    found = typed(module, prefix)
    assert len(found) > 1
    assert found <= names(fields, within)


def test_every_parameter_of_its_newest_major_has_a_verdict() -> None:
    assert names(CHAT) >= NEWEST


@pytest.mark.parametrize(
    ("fields", "within", "body"),
    [
        (CHAT, "", bodies.ChatBody),
        (COMPLETION, "", bodies.CompletionBody),
        (EMBEDDING, "", bodies.EmbeddingBody),
        (CHAT, "messages[]", bodies.Message),
        (CHAT, "messages[].tool_calls[]", bodies.ToolCall),
        (CHAT, "messages[].tool_calls[].function", bodies.Function),
        (CHAT, "stream_options", bodies.StreamOptions),
        (CHAT, "structured_outputs", bodies.StructuredOutputs),
        (CHAT, "response_format", bodies.ResponseFormat),
        (CHAT, "response_format.json_schema", bodies.JsonSchema),
    ],
)
def test_what_is_honoured_is_what_bodies_have(fields: tuple[Field, ...], within: str, body: Any) -> None:
    honoured = {each.name for each in fields if each.verdict is Verdict.HONOURED and each.within == within}
    written = {each.name for each in refused(fields, within)} if within else set()
    assert honoured | written == set(body.__struct_fields__)


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_has_two_verdicts(kind: str) -> None:
    paths = [field.path for field in KINDS[kind][0]]
    assert sorted(paths) == sorted(set(paths))


def nested(path: str, value: object) -> dict[str, object]:
    """A body's fields that say this."""
    if path.startswith("messages[]."):
        return {"messages": [MESSAGE, {"role": "assistant", "content": "a", path.partition(".")[2]: value}]}
    if path.startswith("response_format.json_schema."):
        schema = {"schema": {}, path.rpartition(".")[2]: value}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    outer, _, inner = path.partition(".")
    if not inner:
        return {outer: value}
    return {outer: {"regex": "a", inner: value} if outer == "structured_outputs" else {inner: value}}


CASES = [(kind, field) for kind, (fields, _, _) in KINDS.items() for field in fields]


@pytest.mark.parametrize(
    ("kind", "field"), [case for case in CASES if case[1].verdict is Verdict.REFUSED], ids=lambda each: str(each)[:60]
)
def test_what_is_refused_is_refused_by_name_but_for_what_asks_for_nothing(kind: str, field: Field) -> None:
    _, parse, body = KINDS[kind]
    for value in (None, *field.allowed):
        parse(json.dumps(body | nested(field.path, value)).encode())
    for asked in ({"x": [1, "y"]}, "something", -7, ["a" * 100]):
        with pytest.raises(WeirError) as caught:
            parse(json.dumps(body | nested(field.path, asked)).encode())
        assert caught.value.reason is Reason.INVALID_REQUEST
        assert caught.value.limit == field.path.replace("messages[]", "messages[1]")
        assert "a" * 100 not in caught.value.message, "the caller's words are not said again"


@pytest.mark.parametrize(
    ("kind", "field"), [case for case in CASES if case[1].verdict is Verdict.HARMLESS], ids=lambda each: str(each)[:60]
)
def test_what_is_ignored_changes_nothing(kind: str, field: Field) -> None:
    _, parse, body = KINDS[kind]
    plain, given = (nested(field.path, value) for value in (None, {"x": [1, "y"]}))
    assert parse(json.dumps(body | given).encode()) == parse(json.dumps(body | plain).encode())
    assert field.note, "why"


@pytest.mark.parametrize("name", ["tool_choice", "parallel_tool_calls"])
def test_without_tools_these_are_told_as_openai_tells_them(name: str) -> None:
    with pytest.raises(WeirError, match=f"'{name}' is only allowed when 'tools' are specified"):
        parse_chat(json.dumps(KINDS["chat"][2] | {name: "required"}).encode())


def test_a_refused_value_that_is_no_text_is_refused_all_the_same() -> None:
    with pytest.raises(WeirError) as caught:
        parse_chat(b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "verbosity": "\xff"}')
    assert caught.value.limit == "verbosity"


def test_the_page_says_what_the_table_says() -> None:
    subprocess.run([sys.executable, "bin/openai-docs", "--check"], check=True)
