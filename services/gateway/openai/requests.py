"""OpenAI request bodies → `Spec`.

Unknown fields are tolerated, as every OpenAI-compatible server must; fields that would change the answer and that we
do not offer are refused by name rather than ignored. Source: the OpenAI API reference (chat, completions, embeddings).
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from libs.errors import Reason, WeirError
from libs.texts import ChatMessage
from services.gateway.policy.parameters import MAX_BIASES, check_role, invalid
from services.gateway.policy.spec import Parameters, Spec, Structure

_MISSING = re.compile(r"missing required field `([^`]+)`$")
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _JsonSchema(msgspec.Struct):
    schema: msgspec.Raw = msgspec.Raw()


class _ResponseFormat(msgspec.Struct):
    type: str = "text"
    json_schema: _JsonSchema | None = None


class _StructuredOutputs(msgspec.Struct):
    """vLLM's own field; `json` is a schema, as an object or as text."""

    json: msgspec.Raw = msgspec.Raw()
    regex: str | None = None
    choice: Any = None
    grammar: Any = None
    json_object: Any = None
    structural_tag: Any = None


class _Common(msgspec.Struct):
    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
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
    logit_bias: msgspec.Raw = msgspec.Raw()
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: Any = None
    ignore_eos: bool | None = None
    response_format: _ResponseFormat | None = None
    structured_outputs: _StructuredOutputs | None = None
    service_tier: str | None = None


class _ChatBody(_Common, kw_only=True):
    messages: list[_Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None


class _CompletionBody(_Common, kw_only=True):
    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class _EmbeddingBody(msgspec.Struct):
    model: str
    input: str | list[Any]
    encoding_format: str | None = None
    dimensions: int | None = None
    user: str | None = None
    safety_identifier: str | None = None


class OpenAIRequest(msgspec.Struct, frozen=True):
    """A generation and how its answer is wanted."""

    spec: Spec
    stream: bool
    include_usage: bool
    more: tuple[Spec, ...] = ()
    """The same for further prompts, whose choices come behind the first one's."""


class EmbeddingRequest(msgspec.Struct, frozen=True):
    """What to embed; `base64` asks for packed little-endian floats instead of numbers."""

    spec: Spec
    base64: bool


B = TypeVar("B")
_chat = msgspec.json.Decoder(_ChatBody)
_completion = msgspec.json.Decoder(_CompletionBody)
_embedding = msgspec.json.Decoder(_EmbeddingBody)
_biases = msgspec.json.Decoder(dict[str, float])
MAX_LISTED = 128
"""Choices of all prompts of one completion."""
_BIAS_BYTES = 64 * MAX_BIASES
"""As much as so many tokens may take, with room for spaces."""


def parse_chat(body: bytes, *, client_request_id: str = "") -> OpenAIRequest:
    """Parse a chat completion.

    :raises WeirError: INVALID_REQUEST naming the field.
    """
    given = _decode(_chat, body)
    if not given.messages:
        raise invalid("messages", "at least one message")
    for name in ("tools", "functions"):
        if getattr(given, name):
            raise invalid(name, "not offered by this server")
    if given.top_logprobs is not None and not given.logprobs:
        raise invalid("top_logprobs", "needs logprobs: true")
    most, field = given.max_tokens, "max_tokens"
    if given.max_completion_tokens is not None and (most is None or given.max_completion_tokens < most):
        most, field = given.max_completion_tokens, "max_completion_tokens"
    messages = tuple([ChatMessage(_role(m, i), _content(m, i)) for i, m in enumerate(given.messages)])
    logprobs = (given.top_logprobs or 0) if given.logprobs else None
    parameters = _parameters(
        given, max_tokens=most, max_tokens_field=field, logprobs=logprobs, logprobs_field="top_logprobs"
    )
    return _request(
        given, operation="chat", messages=messages, parameters=parameters, client_request_id=client_request_id
    )


def parse_completion(body: bytes, *, client_request_id: str = "") -> OpenAIRequest:
    """Parse a legacy completion.

    :raises WeirError: INVALID_REQUEST naming the field.
    """
    given = _decode(_completion, body)
    for name in ("echo", "suffix"):
        if getattr(given, name):
            raise invalid(name, "not offered by this server")
    if given.best_of is not None and given.best_of != (given.n or 1):
        raise invalid("best_of", "must equal n")
    prompts = _inputs(given.prompt, "prompt")
    if not prompts:
        raise invalid("prompt", "at least one")
    if len(prompts) * max(given.n or 1, 1) > MAX_LISTED:
        raise invalid("prompt", f"at most {MAX_LISTED} choices in one request, of all prompts together")
    parameters = _parameters(given, max_tokens=given.max_tokens, logprobs=given.logprobs)
    request = _request(given, operation="completion", parameters=parameters, client_request_id=client_request_id)
    first, *more = [
        replace(request.spec, prompt=one) if isinstance(one, str) else replace(request.spec, token_ids=one)
        for one in prompts
    ]
    return replace(request, spec=first, more=tuple(more))


def parse_embedding(body: bytes, *, client_request_id: str = "") -> EmbeddingRequest:
    """Parse an embeddings request.

    :raises WeirError: INVALID_REQUEST naming the field.
    """
    given = _decode(_embedding, body)
    inputs = _inputs(given.input, "input")
    if not inputs or not all(inputs):
        raise invalid("input", "at least one text or list of token ids, none of them empty")
    if given.encoding_format not in (None, "float", "base64"):
        raise invalid("encoding_format", "must be float or base64")
    if given.dimensions is not None:
        raise invalid("dimensions", "not offered by this server")
    spec = Spec(
        model=given.model,
        operation="embed",
        inputs=tuple(inputs),
        client_request_id=client_request_id,
        user=given.safety_identifier or given.user or "",
    )
    return EmbeddingRequest(spec, given.encoding_format == "base64")


def _decode(decoder: msgspec.json.Decoder[B], body: bytes | msgspec.Raw, within: str = "body") -> B:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        message = str(error)
        found = _PATH.search(message)
        if found is None:  # a missing field of the body itself: "Object missing required field `model`"
            missing = _MISSING.search(message)
            field = missing.group(1) if missing else within
        else:
            field, message = found.group(1) if within == "body" else within, message[: found.start()]
        raise WeirError(Reason.INVALID_REQUEST, f"{field}: {message}", limit=field) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WeirError(Reason.INVALID_REQUEST, f"the body is not valid JSON: {error}", limit="body") from error
    except RecursionError as error:
        raise WeirError(Reason.INVALID_REQUEST, "the body is nested too deeply", limit="body") from error


def _request(given: _Common, **more: Any) -> OpenAIRequest:
    stream = bool(given.stream)
    spec = Spec(
        model=given.model,
        user=given.safety_identifier or given.user or "",
        session=_session(given),
        whole=not stream,
        entire=not stream,
        # OpenAI's word for a request that may wait; the other tiers cannot raise one above its plan.
        batch=given.service_tier == "flex",
        **more,
    )
    return OpenAIRequest(spec, stream, bool(given.stream_options and given.stream_options.include_usage))


def _session(given: _Common) -> str:
    """What the caller says of the conversation: whatever else metadata holds is its own affair."""
    if given.prompt_cache_key:
        return given.prompt_cache_key
    named = given.metadata.get("session_id") if isinstance(given.metadata, dict) else None
    return named if isinstance(named, str) else ""


def _parameters(given: _Common, **more: Any) -> Parameters:
    stop = given.stop if given.stop is not None else ()
    return Parameters(
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=given.top_k,
        min_p=given.min_p,
        repetition_penalty=given.repetition_penalty,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        seed=given.seed,
        n=given.n,
        logit_bias=_logit_bias(given.logit_bias),
        ignore_eos=bool(given.ignore_eos),
        structure=_structure(given),
        **more,
    )


def _structure(given: _Common) -> Structure | None:
    """What the output must match, from either of the fields that say so."""
    theirs = given.structured_outputs
    ours = _response_format(given.response_format)
    if theirs is None:
        return ours
    if ours is not None:
        raise invalid("structured_outputs", "not beside response_format")
    for name in ("choice", "grammar", "json_object", "structural_tag"):
        if getattr(theirs, name):
            raise invalid(f"structured_outputs.{name}", "not offered by this server")
    schema = _schema(theirs.json, "structured_outputs.json")
    if (schema is None) == (theirs.regex is None):
        raise invalid("structured_outputs", "needs either json or regex")
    return schema if theirs.regex is None else Structure("regex", theirs.regex, "structured_outputs.regex")


def _response_format(given: _ResponseFormat | None) -> Structure | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return Structure("json_schema", '{"type": "object"}', "response_format")
    if given.type != "json_schema":
        raise invalid("response_format.type", "must be text, json_object or json_schema")
    field = "response_format.json_schema.schema"
    schema = _schema(given.json_schema.schema, field) if given.json_schema is not None else None
    if schema is None:
        raise invalid(field, "is missing")
    return schema


def _schema(raw: msgspec.Raw, field: str) -> Structure | None:
    """The schema as the caller wrote it (the order of its properties is the order of the output's), None without."""
    try:
        text = bytes(raw).decode()
    except UnicodeDecodeError:  # the decoder looks only into what it decodes
        raise invalid(field, "is not UTF-8") from None
    if text in ("", "null"):
        return None
    if text.startswith('"'):  # a document in a string
        text = msgspec.json.decode(text)
    if not text.lstrip().startswith("{"):
        raise invalid(field, "must be a JSON object")
    return Structure("json_schema", text, field)


def _logit_bias(given: msgspec.Raw) -> dict[int, float]:
    """By token id. What is far too long is not even read: a body may hold a hundred thousand."""
    if len(given) > _BIAS_BYTES:
        raise invalid("logit_bias", f"at most {MAX_BIASES} tokens")
    if bytes(given) in (b"", b"null"):
        return {}
    found = _decode(_biases, given, "logit_bias")
    try:
        bias = {int(token): value for token, value in found.items()}
    except ValueError as error:
        raise invalid("logit_bias", "keys must be token ids") from error
    if any(not 0 <= token < 2**32 for token in bias):
        raise invalid("logit_bias", "keys must be token ids")
    return bias


def _role(message: _Message, position: int) -> str:
    check_role(message.role, position)
    # OpenAI's newer name for the same thing; open models were trained with the older one.
    return "system" if message.role == "developer" else message.role


def _content(message: _Message, position: int) -> str:
    if isinstance(message.content, str):
        return message.content
    field = f"messages[{position}].content"
    if message.content is None:
        raise invalid(field, "is missing")
    if any(part.type != "text" or part.text is None for part in message.content):
        raise invalid(field, "only parts of type text are offered by this server")
    return "".join(part.text or "" for part in message.content)


def _inputs(given: str | list[Any], field: str) -> list[str | tuple[int, ...]]:
    """One text, one list of token ids, or a list of either, as the completions and the embeddings take it."""
    if isinstance(given, str):
        return [given]
    if given and not isinstance(given[0], (str, list)):
        given = [given]
    return [one if isinstance(one, str) else _token_ids(one, field) for one in given]


def _token_ids(given: Any, field: str) -> tuple[int, ...]:
    ids = tuple(given) if isinstance(given, list) else ()
    if not ids or not all(type(token) is int and 0 <= token < 2**32 for token in ids):
        raise invalid(field, "a text, a list of token ids, or a list of either")
    return ids
