"""Generation events → OpenAI bodies and server-sent events.

A streamed chunk differs from the last one only in its text, so everything around it is encoded once per stream and a
chunk is a join of bytes.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from libs.cursor import Trail
from libs.routing import ListedModel
from services.gateway.openai.errors import error_object
from services.gateway.policy.events import ChoiceUpdate, End, Finish, Logprob, Usage
from services.gateway.policy.resuming import ends
from services.gateway.request import Accepted

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": heartbeat\n"
"""A comment, without the blank line that ends an event: behind an id, OpenAI's own client takes that for one without
data, and fails."""
_json = msgspec.json.Encoder().encode


class StreamEncoder:
    """Server-sent events of one streamed completion. `chat` chooses between the two APIs' shapes."""

    def __init__(
        self,
        accepted: Accepted,
        *,
        chat: bool,
        include_usage: bool,
        trail: Trail | None = None,
        begun: Iterable[int] = (),
    ) -> None:
        """`trail` makes the events' ids; `begun`: choices whose first event the reader has."""
        self._trail = trail
        self._chat = chat
        self._include_usage = include_usage
        self._accepted = accepted
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = {
            "id": response_id(accepted, chat=chat),
            "object": kind,
            "created": accepted.created if accepted.origin is None else accepted.origin.created,
            "model": accepted.model_version,
        }
        self._head = b"data: " + _json(head)[:-1]
        self._null_usage = b',"usage":null' if include_usage else b""
        self._started = set(begun)
        # Around the text of the common chunk: more text, nothing else.
        opening = b'"delta":{"content":' if chat else b'"text":'
        closing = (b"}" if chat else b"") + b',"logprobs":null,"finish_reason":null}]' + self._null_usage + b"}\n\n"
        self._plain = (self._head + b',"choices":[{"index":', b"," + opening, closing)

    def update(self, update: ChoiceUpdate, tokens: int = 0) -> bytes:
        """The event for one choice's new output, after `tokens` in all; its first also names the role. Fewer than 0: it
        cannot be gone on with any more, and the reader forgets the last id."""
        if self._trail is None:
            return self._event(update)
        if tokens < 0:
            return b"id:\n" + self._event(update)
        count = 0 if update.logprobs is None else len(update.logprobs)
        event_id = self._trail.event(update.index, update.text, tokens, logprobs=count, ended=ends(update.finish))
        return b"id: %b\n%b" % (event_id, self._event(update))

    def _event(self, update: ChoiceUpdate) -> bytes:
        text = _json(update.text)
        if update.finish is None and update.logprobs is None and update.index in self._started:
            head, opening, closing = self._plain
            return b"%b%d%b%b%b" % (head, update.index, opening, text, closing)
        if self._chat:
            role = b'"role":"assistant",' if update.index not in self._started else b""
            body = b'"delta":{' + role + b'"content":' + text + b"}"
            if update.finish is not None and not update.text and not role:
                body = b'"delta":{}'
        else:
            body = b'"text":' + text
        self._started.add(update.index)
        logprobs = b"null" if update.logprobs is None else _json(_logprobs(update.logprobs, chat=self._chat))
        finish = b"null" if update.finish is None else b'"' + update.finish.label.encode() + b'"'
        return b"".join(
            (
                self._head,
                b',"choices":[{"index":%d,' % update.index,
                body,
                b',"logprobs":',
                logprobs,
                b',"finish_reason":',
                finish,
                b"}]",
                self._null_usage,
                b"}\n\n",
            )
        )

    def end(self, end: End) -> bytes:
        """Everything after the last choice: an error event if there was one, usage if it was asked for, `[DONE]`."""
        parts: list[bytes] = []
        if end.finish is Finish.ERROR and end.error is not None:
            parts.append(b'data: {"error":' + _json(error_object(end.error)) + b"}\n\n")
        elif self._include_usage:
            tail = {"choices": [], "usage": usage_object(end.whole_usage), "weir": _extension(self._accepted, end)}
            parts.append(self._head + b"," + _json(tail)[1:] + b"\n\n")
        parts.append(DONE)
        return b"".join(parts)


def whole_body(accepted: Accepted, choices: Sequence[ChoiceUpdate], end: End, *, chat: bool) -> bytes:
    """The body of a completion that was not streamed."""
    return _json(
        {
            "id": response_id(accepted, chat=chat),
            "object": "chat.completion" if chat else "text_completion",
            "created": accepted.created,
            "model": accepted.model_version,
            "choices": [_whole_choice(choice, chat=chat) for choice in choices],
            "usage": usage_object(end.usage),
            "weir": _extension(accepted, end),
        }
    )


def models_body(models: Iterable[ListedModel]) -> bytes:
    """The body of `GET /v1/models`."""
    return _json({"object": "list", "data": [_model(model) for model in models]})


def model_body(model: ListedModel) -> bytes:
    """The body of `GET /v1/models/{id}`."""
    return _json(_model(model))


def embeddings_body(accepted: Accepted, vectors: Sequence[Sequence[float]], *, as_base64: bool) -> bytes:
    """The body of `POST /v1/embeddings`; base64 packs little-endian float32."""
    data = [
        {
            "object": "embedding",
            "index": i,
            "embedding": base64.b64encode(struct.pack(f"<{len(v)}f", *v)).decode() if as_base64 else list(v),
        }
        for i, v in enumerate(vectors)
    ]
    usage = {"prompt_tokens": accepted.prompt_tokens, "total_tokens": accepted.prompt_tokens}
    cost = accepted.cost(Usage(accepted.prompt_tokens))
    more = {} if cost is None else {"weir": {"cost_microusd": cost}}
    return _json({"object": "list", "data": data, "model": accepted.model_version, "usage": usage, **more})


def response_id(accepted: Accepted, *, chat: bool) -> str:
    """OpenAI's id of a completion, made of the id of the request that began it."""
    begun_by = accepted.request_id if accepted.origin is None else accepted.origin.request_id
    return f"{'chatcmpl' if chat else 'cmpl'}-{begun_by}"


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
    }


def _extension(accepted: Accepted, end: End) -> dict[str, Any]:
    """Our own fields, in one object that other clients ignore."""
    failed = end.error if end.finish is Finish.ERROR else None  # a prompt of a list
    return {
        **({} if failed is None else {"error": error_object(failed)}),
        **({} if (cost := accepted.cost(end.usage)) is None else {"cost_microusd": cost}),
        "simulated": accepted.simulated,
        "arm": accepted.arm,
        "zone": accepted.zone,
        "degraded": list(end.degraded),
        **({"billed": usage_object(end.usage)} if end.earlier.prompt_tokens else {}),
        "trace_id": accepted.trace_id,
        "breakdown_ms": {
            name: round(getattr(end.breakdown, name) * 1000, 3) for name in end.breakdown.__dataclass_fields__
        },
    }


def _whole_choice(choice: ChoiceUpdate, *, chat: bool) -> dict[str, Any]:
    return {
        "index": choice.index,
        **({"message": {"role": "assistant", "content": choice.text}} if chat else {"text": choice.text}),
        "logprobs": None if choice.logprobs is None else _logprobs(choice.logprobs, chat=chat),
        "finish_reason": choice.finish.label if choice.finish else None,
    }


def _logprobs(entries: Sequence[Logprob], *, chat: bool) -> dict[str, Any]:
    if chat:
        return {
            "content": [
                {**_token(e.token, e.raw, e.logprob), "top_logprobs": [_token(*alternative) for alternative in e.top]}
                for e in entries
            ]
        }
    return {
        "tokens": [e.token for e in entries],
        "token_logprobs": [e.logprob for e in entries],
        "top_logprobs": [{token: logprob for token, _, logprob in e.top} for e in entries],
        "text_offset": [e.offset for e in entries],
    }


def _token(token: str, raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(raw)}


def _model(model: ListedModel) -> dict[str, Any]:
    return {
        "id": model.id,
        "object": "model",
        "created": int(model.created_at),
        "owned_by": "weir",
        "weir": {"model_version": model.model_version, "tier": model.tier, "context_length": model.context_length},
    }


# `google.api.HttpBody` by hand: one is written per streamed token, and a message object costs more than its bytes.


def content_prefix(content_type: str) -> bytes:
    """Everything of an HttpBody before the length of its data: field 1 (content_type) and the tag of field 2 (data)."""
    encoded = content_type.encode()
    return b"\x0a" + _varint(len(encoded)) + encoded + b"\x12"


def http_body(prefix: bytes, data: bytes) -> bytes:
    """A serialised HttpBody; `prefix` is from `content_prefix`."""
    return b"%b%b%b" % (prefix, _varint(len(data)), data)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
