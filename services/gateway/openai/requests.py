"""OpenAI request bodies → `Spec`.

Unknown fields are tolerated, as every OpenAI-compatible server must; fields that would change the answer and that we
do not offer are refused by name rather than ignored: `fields.py` has a verdict on each, `bodies.py` their shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from libs.errors import Reason, WeirError
from libs.structured_output import regex_of
from services.gateway.openai.bodies import (
    CHAT_BODY,
    CHAT_REFUSALS,
    COMPLETION_BODY,
    COMPLETION_REFUSALS,
    EMBEDDING_BODY,
    EMBEDDING_REFUSALS,
    STREAM_OPTIONS_REFUSALS,
    STRUCTURED_OUTPUTS_REFUSALS,
    GenerationBody,
    ResponseFormat,
)
from services.gateway.openai.conversation import message_of, options_of
from services.gateway.policy.parameters import MAX_BIASES, invalid
from services.gateway.policy.spec import Parameters, Spec, Structure

_MISSING = re.compile(r"missing required field `([^`]+)`$")
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")


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


T = TypeVar("T")
_biases = msgspec.json.Decoder(dict[str, float])
MAX_LISTED = 128
"""Choices of all prompts of one completion."""
_BIAS_BYTES = 64 * MAX_BIASES
"""As much as so many tokens may take, with room for spaces."""


def parse_chat(body: bytes, *, client_request_id: str = "") -> OpenAIRequest:
    """Parse a chat completion.

    :raises WeirError: INVALID_REQUEST naming the field.
    """
    given = _decode(CHAT_BODY, body)
    CHAT_REFUSALS.check(given)
    if not given.messages:
        raise invalid("messages", "at least one message")
    if given.top_logprobs is not None and not given.logprobs:
        raise invalid("top_logprobs", "needs logprobs: true")
    most, field = given.max_tokens, "max_tokens"
    if given.max_completion_tokens is not None and (most is None or given.max_completion_tokens < most):
        most, field = given.max_completion_tokens, "max_completion_tokens"
    messages = tuple([message_of(message, at) for at, message in enumerate(given.messages)])
    logprobs = (given.top_logprobs or 0) if given.logprobs else None
    parameters = _parameters(
        given, max_tokens=most, max_tokens_field=field, logprobs=logprobs, logprobs_field="top_logprobs"
    )
    chat = options_of(given)
    return _request(
        given,
        operation="chat",
        messages=messages,
        chat=chat,
        parameters=parameters,
        client_request_id=client_request_id,
    )


def parse_completion(body: bytes, *, client_request_id: str = "") -> OpenAIRequest:
    """Parse a legacy completion.

    :raises WeirError: INVALID_REQUEST naming the field.
    """
    given = _decode(COMPLETION_BODY, body)
    COMPLETION_REFUSALS.check(given)
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
    given = _decode(EMBEDDING_BODY, body)
    EMBEDDING_REFUSALS.check(given)
    inputs = _inputs(given.input, "input")
    if not inputs or not all(inputs):
        raise invalid("input", "at least one text or list of token ids, none of them empty")
    if given.encoding_format not in (None, "float", "base64"):
        raise invalid("encoding_format", "must be float or base64")
    spec = Spec(
        model=given.model,
        operation="embed",
        inputs=tuple(inputs),
        client_request_id=client_request_id,
        user=given.safety_identifier or given.user or "",
    )
    return EmbeddingRequest(spec, given.encoding_format == "base64")


def _decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw, within: str = "body") -> T:
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


def _request(given: GenerationBody, **more: Any) -> OpenAIRequest:
    stream = bool(given.stream)
    if given.stream_options is not None:
        STREAM_OPTIONS_REFUSALS.check(given.stream_options)
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


def _session(given: GenerationBody) -> str:
    """What the caller says of the conversation: whatever else metadata holds is its own affair."""
    if given.prompt_cache_key:
        return given.prompt_cache_key
    named = given.metadata.get("session_id") if isinstance(given.metadata, dict) else None
    return named if isinstance(named, str) else ""


def _parameters(given: GenerationBody, **more: Any) -> Parameters:
    stop = given.stop if given.stop is not None else ()
    return Parameters(
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=0 if given.top_k == -1 else given.top_k,  # vLLM's word for all of them
        min_p=given.min_p,
        repetition_penalty=given.repetition_penalty,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        seed=given.seed,
        n=given.n,
        logit_bias=_logit_bias(given.logit_bias),
        min_tokens=given.min_tokens,
        stop_token_ids=tuple(given.stop_token_ids or ()),
        bad_words=tuple(given.bad_words or ()),
        ignore_eos=bool(given.ignore_eos),
        structure=_structure(given),
        **more,
    )


def _structure(given: GenerationBody) -> Structure | None:
    """What the output must match, from the one of the fields that says so."""
    theirs = given.structured_outputs
    found = [
        _response_format(given.response_format),
        _schema(given.guided_json, "guided_json"),
        *_texts("guided_", given.guided_regex, given.guided_grammar, given.guided_choice),
    ]
    if theirs is not None:
        STRUCTURED_OUTPUTS_REFUSALS.check(theirs)
        within = "structured_outputs."
        own = [
            _schema(theirs.json, f"{within}json"),
            _any_object(f"{within}json_object") if theirs.json_object else None,
            *_texts(within, theirs.regex, theirs.grammar, theirs.choice),
        ]
        if not any(own):
            raise invalid("structured_outputs", "needs one of json, regex, choice, grammar and json_object")
        found += own
    structures = [each for each in found if each is not None]
    if len(structures) > 1:
        raise invalid(structures[1].field, f"not beside {structures[0].field}")
    return structures[0] if structures else None


def _texts(within: str, regex: str | None, grammar: str | None, choice: list[str] | None) -> Iterator[Structure | None]:
    yield None if regex is None else Structure("regex", regex, f"{within}regex")
    yield None if grammar is None else Structure("grammar", grammar, f"{within}grammar")
    if choice is not None:
        if not choice:
            raise invalid(f"{within}choice", "at least one")
        yield Structure("regex", regex_of(choice), f"{within}choice")


def _any_object(field: str) -> Structure:
    return Structure("json_schema", '{"type": "object"}', field)


def _response_format(given: ResponseFormat | None) -> Structure | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return _any_object("response_format")
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
