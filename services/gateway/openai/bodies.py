"""What bodies look like, and what in them is refused by name (`fields.py`).

Refused fields are fields of the structs, too, and kept as they were written: a body is decoded once, and what was not
sent costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from services.gateway.openai.fields import CHAT, COMPLETION, EMBEDDING, Field, refused
from services.gateway.policy.parameters import invalid

ABSENT = msgspec.Raw()
"""The default of every such field, known by its identity."""
_LONGEST = 64
"""Bytes of the longest value that may ask for nothing."""
B = TypeVar("B", bound=msgspec.Struct)


class Refusals:
    """The refused fields of one kind of object."""

    def __init__(self, fields: Sequence[Field]) -> None:
        """At least two: see `attrgetter`."""
        self._fields = fields
        self._values: Callable[[Any], tuple[msgspec.Raw, ...]] = attrgetter(*[field.name for field in fields])

    def check(self, given: msgspec.Struct, where: str = "") -> None:
        """Look at those that were given; `where` is the path of the object, if it is not the fields' own.

        :raises WeirError: INVALID_REQUEST naming the first that asks for something.
        """
        values = self._values(given)
        if values.count(ABSENT) == len(values):
            return
        for field, value in zip(self._fields, values, strict=True):
            if value is not ABSENT and not _asks_nothing(value, field.allowed):
                raise invalid(f"{where}.{field.name}" if where else field.path, field.note)


class Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct):
    function: Function
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    function_call: msgspec.Raw = ABSENT
    audio: msgspec.Raw = ABSENT


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    include_obfuscation: msgspec.Raw = ABSENT
    continuous_usage_stats: msgspec.Raw = ABSENT


class JsonSchema(msgspec.Struct):
    schema: msgspec.Raw = ABSENT


class ResponseFormat(msgspec.Struct):
    type: str = "text"
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct):
    """vLLM's own field; `json` is a schema, as an object or as text."""

    json: msgspec.Raw = ABSENT
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: msgspec.Raw = ABSENT
    whitespace_pattern: msgspec.Raw = ABSENT
    disable_any_whitespace: msgspec.Raw = ABSENT
    disable_additional_properties: msgspec.Raw = ABSENT


class GenerationBody(msgspec.Struct):
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    n: int | None = None
    logit_bias: msgspec.Raw = ABSENT
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: Any = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: msgspec.Raw = ABSENT
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    service_tier: str | None = None


class ChatBody(GenerationBody, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, str]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionBody(GenerationBody, kw_only=True):
    prompt: str | list[Any]
    logprobs: int | None = None
    best_of: int | None = None


class EmbeddingBody(msgspec.Struct):
    model: str
    input: str | list[Any]
    encoding_format: str | None = None
    user: str | None = None
    safety_identifier: str | None = None


def _decoder(body: type[B], fields: Sequence[Field]) -> msgspec.json.Decoder[B]:
    """Of bodies that have what is honoured; what it makes of them has the refused fields, too."""
    more = [(field.name, msgspec.Raw, ABSENT) for field in refused(fields)]
    whole: Any = msgspec.defstruct(body.__name__, more, bases=(body,), kw_only=True)
    return msgspec.json.Decoder(whole)


CHAT_BODY = _decoder(ChatBody, CHAT)
COMPLETION_BODY = _decoder(CompletionBody, COMPLETION)
EMBEDDING_BODY = _decoder(EmbeddingBody, EMBEDDING)
CHAT_REFUSALS = Refusals(refused(CHAT))
COMPLETION_REFUSALS = Refusals(refused(COMPLETION))
EMBEDDING_REFUSALS = Refusals(refused(EMBEDDING))
MESSAGE_REFUSALS = Refusals(refused(CHAT, "messages[]"))
STREAM_OPTIONS_REFUSALS = Refusals(refused(CHAT, "stream_options"))
STRUCTURED_OUTPUTS_REFUSALS = Refusals(refused(CHAT, "structured_outputs"))


def _asks_nothing(value: msgspec.Raw, allowed: tuple[Any, ...]) -> bool:
    raw = bytes(value)
    if raw == b"null":
        return True
    if len(raw) > _LONGEST:
        return False
    try:
        return msgspec.json.decode(raw) in allowed
    except (msgspec.DecodeError, UnicodeDecodeError):  # the decoder looks only into what it decodes
        return False
