"""Conversations as callers give them: turns, what a turn may have beside its text, and what a template is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Change = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One of an assistant's calls."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""
    id: str = ""

    def mapped(self, change: Change) -> ToolCall:
        """See `ChatMessage.mapped`."""
        return ToolCall(change(self.name), mapped(self.arguments, change), _changed(self.id, change))

    def told(self, *, as_text: bool) -> dict[str, Any]:
        """As templates have it."""
        arguments = json.dumps(self.arguments, ensure_ascii=False) if as_text else self.arguments
        call = {"type": "function", "function": {"name": self.name, "arguments": arguments}}
        return {"id": self.id, **call} if self.id else call


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation; what is empty was not given."""

    role: str
    content: str
    name: str = ""
    """Who speaks or, of a tool's turn, what was called."""
    tool_call_id: str = ""
    """Of a tool's turn: the call that it answers."""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    """What an assistant thought before it spoke."""

    @property
    def plain(self) -> bool:
        """It has nothing but its content."""
        return not (self.name or self.tool_call_id or self.tool_calls or self.reasoning)

    def mapped(self, change: Change) -> ChatMessage:
        """The message with each of its caller's texts changed, in an order that is always the same."""
        if self.plain:
            return ChatMessage(self.role, change(self.content))
        return ChatMessage(
            self.role,
            change(self.content),
            _changed(self.name, change),
            _changed(self.tool_call_id, change),
            tuple([call.mapped(change) for call in self.tool_calls]),
            _changed(self.reasoning, change),
        )

    def told(self, *, as_text: bool, nothing: str | None) -> dict[str, Any]:
        """As templates have it.

        :param as_text: arguments of calls are JSON text, not objects.
        :param nothing: the content of calls beside which nothing is said.
        """
        told: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.plain:
            return told
        if self.tool_calls and not self.content:
            told["content"] = nothing
        if self.name:
            told["name"] = self.name
        if self.tool_call_id:
            told["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            told["tool_calls"] = [call.told(as_text=as_text) for call in self.tool_calls]
        if self.reasoning:  # under the names that transformers gives it
            told["thinking"] = told["reasoning_content"] = told["reasoning"] = self.reasoning
        return told


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a template is told beside the messages."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    """`chat_template_kwargs`: JSON values by name."""
    documents: tuple[Mapping[str, str], ...] = ()
    reasoning_effort: str = ""
    generation_prompt: bool = True
    """The prompt ends with the head of the assistant's turn."""
    continued: bool = False
    """The last message is not over: the prompt ends with its content. There is no generation prompt."""

    def mapped(self, change: Change) -> ChatOptions:
        """See `ChatMessage.mapped`. Names of variables are the template's own, not their caller's."""
        if not self.variables and not self.documents:
            return self
        variables = {name: mapped(value, change) for name, value in self.variables.items()}
        return replace(self, variables=variables, documents=tuple([mapped(each, change) for each in self.documents]))


PLAIN = ChatOptions()


def texts_of(messages: Sequence[ChatMessage], options: ChatOptions = PLAIN) -> list[str]:
    """All texts of the caller's, numbers among them, in the order of `mapped`."""
    texts: list[str] = []

    def seen(text: str) -> str:
        texts.append(text)
        return text

    for message in messages:
        if message.plain:
            texts.append(message.content)
        else:
            message.mapped(seen)
    options.mapped(seen)
    return texts


def mapped(value: Any, change: Change) -> Any:
    """A JSON value with its texts, its keys and what its numbers are as text changed. A number that changes is a text
    from then on."""
    match value:
        case str():
            return change(value)
        case None | bool():
            return value
        case int() | float():
            text = json.dumps(value)
            now = change(text)
            return value if now == text else now
        case Mapping():
            return {change(key): mapped(each, change) for key, each in value.items()}
    return [mapped(each, change) for each in value]


def values_in(value: Any, depth: int) -> int:
    """How many values a JSON value has, itself included.

    :raises ValueError: they are nested more than `depth` levels deep.
    """
    if not isinstance(value, Mapping | list):
        return 1
    if not depth:
        raise ValueError
    return 1 + sum(values_in(each, depth - 1) for each in (value.values() if isinstance(value, Mapping) else value))


def _changed(text: str, change: Change) -> str:
    return change(text) if text else ""
