"""What OpenAI bodies say to a chat template beside roles and contents: taken with its types and bounds, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from weir.inference.v1 import inference_pb2

from libs.errors import Reason, WeirError
from libs.texts import ChatMessage, ChatOptions, ToolCall
from libs.texts.conversation import PLAIN
from services.gateway.convert import to_spec
from services.gateway.openai.conversation import MAX_CALLS, MAX_DEPTH, MAX_DOCUMENTS, MAX_VALUES, MAX_VARIABLES
from services.gateway.openai.requests import parse_chat
from services.gateway.policy.parameters import ROLES
from services.gateway.policy.spec import Spec
from services.gateway.request import with_texts

ASKED = {"role": "user", "content": "hi"}


def parsed(*messages: dict[str, Any], **fields: Any) -> Spec:
    return parse_chat(json.dumps({"model": "m", "messages": [ASKED, *messages], **fields}).encode()).spec


def call(arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}, **more}


def calling(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def test_turns_of_tools_are_taken_as_clients_send_them_back() -> None:
    spec = parsed(
        {**calling(call('{"a": [1, {"b": null}], "n": 12345678901234567890123}')), "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": [{"type": "text", "text": "42"}]},
        {"role": "assistant", "content": "so", "reasoning": "ah", "tool_calls": [], "function_call": None},
        calling(call({"a": 1}), call(""), call(None, id=None)),
    )
    assert spec.messages is not None
    arguments = {"a": [1, {"b": None}], "n": 12345678901234567890123}
    assert spec.messages[1:] == (
        ChatMessage("assistant", "", tool_calls=(ToolCall("f", arguments, "c1"),), reasoning="hm"),
        ChatMessage("tool", "42", name="f", tool_call_id="c1"),
        ChatMessage("assistant", "so", reasoning="ah"),
        ChatMessage(
            "assistant", "", tool_calls=(ToolCall("f", {"a": 1}, "c1"), ToolCall("f", {}, "c1"), ToolCall("f"))
        ),
    )
    assert spec.chat is PLAIN


def test_what_is_said_to_the_template_is_taken() -> None:
    spec = parsed(
        chat_template_kwargs={"enable_thinking": False, "style": {"a": [1.5, None, "x"]}},
        documents=[{"title": "t", "text": "x"}],
        reasoning_effort="low",
        add_generation_prompt=False,
        continue_final_message=True,
    )
    variables = {"enable_thinking": False, "style": {"a": [1.5, None, "x"]}}
    assert spec.chat == ChatOptions(variables, ({"title": "t", "text": "x"},), "low", False, True)
    assert parsed(continue_final_message=True).chat == ChatOptions(continued=True)


@pytest.mark.parametrize("value", [None, {}, [], False])
def test_what_asks_for_nothing_is_nothing(value: object) -> None:
    fields = {
        "chat_template_kwargs": value if value == {} and isinstance(value, dict) else None,
        "documents": value if isinstance(value, list) else None,
        "continue_final_message": value if isinstance(value, bool) else None,
        "add_generation_prompt": None if value is None else True,
        "reasoning_effort": None,
    }
    assert parsed(**fields).chat is PLAIN


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (calling(call("{")), "tool_calls[0].function.arguments"),
        (calling(call("[1]")), "tool_calls[0].function.arguments"),
        (calling(call('{"a": NaN}')), "tool_calls[0].function.arguments"),
        (calling(call('{"a": "\\ud800"}')), "tool_calls[0].function.arguments"),
        (calling(call("[" * 50_000)), "tool_calls[0].function.arguments"),
        (calling(call(), call(json.dumps(nested(MAX_DEPTH + 1)))), "tool_calls[1].function.arguments"),
        (calling(call(json.dumps({"a": [0] * MAX_VALUES}))), "tool_calls[0].function.arguments"),
        (calling(call(type="custom")), "tool_calls[0].type"),
        (calling({"id": "c", "function": {"name": ""}}), "tool_calls[0].function.name"),
        (calling(*[call()] * (MAX_CALLS + 1)), "tool_calls"),
        ({"role": "user", "content": "x", "tool_calls": [call()]}, "tool_calls"),
        ({"role": "user", "content": "x", "tool_call_id": "c1"}, "tool_call_id"),
        ({"role": "user", "content": "x", "reasoning_content": "hm"}, "reasoning_content"),
        ({"role": "user", "content": "x", "reasoning": "hm"}, "reasoning"),
    ],
)
def test_a_bad_turn_is_refused_by_field(message: dict[str, Any], field: str) -> None:
    with pytest.raises(WeirError) as caught:
        parsed(message)
    assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, f"messages[1].{field}")


@pytest.mark.parametrize(
    "message", [calling({"id": "c"}), calling({"id": "c", "function": {"name": 7}}), calling("x"), {**ASKED, "name": 7}]
)
def test_a_turn_of_other_types_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(WeirError) as caught:
        parsed(message)
    assert caught.value.limit.startswith("messages[")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"chat_template_kwargs": {"enable_thinking": "false"}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"thinking": 0}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"__class__": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a" * 65: 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {f"a{at}": 1 for at in range(MAX_VARIABLES + 1)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": [0] * MAX_VALUES}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": nested(MAX_DEPTH + 1)}, "chat_template_kwargs"),
        ({"documents": "x"}, "documents"),
        ({"documents": [{"text": 1}]}, "documents"),
        ({"documents": [{}]}, "documents"),
        ({"documents": [{"text": "x"}] * (MAX_DOCUMENTS + 1)}, "documents"),
        ({"reasoning_effort": "very"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": "yes"}, "continue_final_message"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
    ],
)
def test_a_bad_word_to_the_template_is_refused_by_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(WeirError) as caught:
        parsed(**fields)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.limit.partition("[")[0].startswith(field)


@pytest.mark.parametrize("role", ROLES)
def test_both_faces_know_the_same_roles(role: str) -> None:
    """M14: the native face gave "developer" to templates as it was."""
    chat = inference_pb2.Chat(messages=[inference_pb2.Message(role=role, content="x")])
    native = to_spec(inference_pb2.GenerationSpec(model="m", chat=chat)).messages
    openai = parse_chat(json.dumps({"model": "m", "messages": [{"role": role, "content": "x"}]}).encode()).spec.messages
    assert native == openai == (ChatMessage("system" if role == "developer" else role, "x"),)


def test_safety_reads_all_that_is_said_and_what_it_changes_is_what_is_asked() -> None:
    spec = parsed(
        calling(call('{"to": "ann@example.com", "card": 4111111111111111}')),
        documents=[{"text": "ann@example.com"}],
        chat_template_kwargs={"style": "ann@example.com"},
    )
    texts = spec.texts()
    assert texts.count("ann@example.com") == 3
    assert "4111111111111111" in texts
    hidden = tuple("[X]" if any(each in text for each in ("@", "4111")) else text for text in texts)
    changed = with_texts(spec, hidden)
    assert changed.messages is not None
    assert changed.messages[1].tool_calls[0].arguments == {"to": "[X]", "card": "[X]"}
    assert (changed.chat.documents, changed.chat.variables) == (({"text": "[X]"},), {"style": "[X]"})
    assert with_texts(spec, tuple(texts)) == spec
    with pytest.raises(ValueError, match="texts"):
        with_texts(spec, hidden[1:])
