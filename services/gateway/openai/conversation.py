"""Messages of OpenAI bodies, and what else is said to a chat template → the domain's."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import Any

import msgspec

from libs.texts import ChatMessage, ChatOptions, ToolCall
from libs.texts.conversation import PLAIN, values_in
from services.gateway.openai.bodies import MESSAGE_REFUSALS, ChatBody, Message
from services.gateway.openai.bodies import ToolCall as Call
from services.gateway.policy.parameters import invalid, known_role

MAX_CALLS = 128
"""Of one message, as with OpenAI."""
MAX_DOCUMENTS = 128
MAX_VARIABLES = 32
MAX_VALUES = 1024
"""JSON values in one call's arguments or in `chat_template_kwargs`, ..."""
MAX_DEPTH = 16
"""... and how deep they are nested."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_PARTS = ("text", "refusal")
_BOOLEAN = frozenset({"enable_thinking", "thinking"})
"""Templates ask whether these are true: the text "false" would be."""


def message_of(message: Message, position: int) -> ChatMessage:
    """One message; `position` is among them all.

    :raises WeirError: INVALID_REQUEST naming the field.
    """
    where = f"messages[{position}]"
    content = _content(message, where)
    role = known_role(message.role, position)
    calls = message.tool_calls or []
    if len(calls) > MAX_CALLS:
        raise invalid(f"{where}.tool_calls", f"at most {MAX_CALLS}")
    for given, field, only in (
        (calls, "tool_calls", "assistant"),
        (message.tool_call_id, "tool_call_id", "tool"),
        (message.reasoning_content, "reasoning_content", "assistant"),
        (message.reasoning, "reasoning", "assistant"),
    ):
        if given and role != only:
            raise invalid(f"{where}.{field}", f"is for the role {only}")
    return ChatMessage(
        role,
        content,
        name=message.name or "",
        tool_call_id=message.tool_call_id or "",
        tool_calls=tuple([_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(calls)]),
        reasoning=message.reasoning_content or message.reasoning or "",
    )


def options_of(given: ChatBody) -> ChatOptions:
    """What the template is told beside the messages.

    :raises WeirError: INVALID_REQUEST naming the field.
    """
    effort = given.reasoning_effort or ""
    if effort and effort not in EFFORTS:
        raise invalid("reasoning_effort", f"must be one of {', '.join(EFFORTS)}")
    documents = given.documents or []
    if len(documents) > MAX_DOCUMENTS or not all(0 < len(each) <= MAX_VARIABLES for each in documents):
        raise invalid("documents", f"at most {MAX_DOCUMENTS}, each of 1 to {MAX_VARIABLES} texts by name")
    continued = bool(given.continue_final_message)
    if continued and given.add_generation_prompt:
        raise invalid("continue_final_message", "not beside add_generation_prompt")
    variables = given.chat_template_kwargs or {}
    opened = given.add_generation_prompt is not False
    if not (effort or documents or continued or variables) and opened:
        return PLAIN
    return ChatOptions(_variables(variables), tuple(documents), effort, opened, continued)


def _content(message: Message, where: str) -> str:
    """The text of a turn. An assistant's that was nothing but a refusal, or nothing, is just that: histories are sent
    back as they came."""
    MESSAGE_REFUSALS.check(message, where)
    assistant = message.role == "assistant"
    refusal = message.refusal or "" if assistant else ""
    if isinstance(message.content, str):
        return message.content + refusal
    field = f"{where}.content"
    if message.content is None:
        if not assistant:
            raise invalid(field, "is missing")
        return refusal
    texts = [part.text if part.type == "text" else part.refusal for part in message.content if part.type in _PARTS]
    if len(texts) < len(message.content) or None in texts:
        raise invalid(field, "only parts of type text and refusal are offered by this server")
    return "".join(filter(None, texts)) + refusal


def _call(call: Call, where: str) -> ToolCall:
    if call.type != "function":
        raise invalid(f"{where}.type", "must be function")
    if not call.function.name:
        raise invalid(f"{where}.function.name", "is missing")
    return ToolCall(
        call.function.name, _arguments(call.function.arguments, f"{where}.function.arguments"), call.id or ""
    )


def _arguments(given: str | dict[str, Any] | None, field: str) -> Mapping[str, Any]:
    """As an object; the API has them as JSON text."""
    if not given:
        return {}
    try:
        found = msgspec.json.decode(given, type=dict[str, Any]) if isinstance(given, str) else given
    except (msgspec.DecodeError, RecursionError):
        raise invalid(field, "is no JSON object") from None
    return _bounded(found, field)


def _variables(given: Mapping[str, Any]) -> Mapping[str, Any]:
    field = "chat_template_kwargs"
    if len(given) > MAX_VARIABLES or not all(_is_name(name) for name in given):
        raise invalid(field, f"at most {MAX_VARIABLES}, with names of 1 to 64 letters, digits and underscores")
    for name in _BOOLEAN & given.keys():
        if not isinstance(given[name], bool):
            raise invalid(f"{field}.{name}", "must be true or false")
    return _bounded(given, field)


def _is_name(name: str) -> bool:
    ascii_name = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
    return ascii_name and len(name) <= 64 and not name.startswith("_")


def _bounded(found: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    try:
        if values_in(found, MAX_DEPTH) <= MAX_VALUES:
            return found
    except ValueError:
        pass
    raise invalid(field, f"at most {MAX_VALUES} values, nested at most {MAX_DEPTH} deep")
