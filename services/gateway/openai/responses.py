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

from libs.errors import Reason, WeirError
from libs.routing import ListedModel
from services.gateway.openai.errors import error_object
from services.gateway.policy.events import Accepted, ChoiceUpdate, End, Finish, Logprob, Usage

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": heartbeat\n\n"
_json = msgspec.json.Encoder().encode


class StreamEncoder:
    """Server-sent events of one streamed completion. `chat` chooses between the two APIs' shapes."""

    def __init__(self, accepted: Accepted, *, chat: bool, include_usage: bool) -> None:
        self._chat = chat
        self._include_usage = include_usage
        self._accepted = accepted
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = {
            "id": response_id(accepted, chat=chat),
            "object": kind,
            "created": accepted.created,
            "model": accepted.model_version,
        }
        self._head = b"data: " + _json(head)[:-1]
        self._null_usage = b',"usage":null' if include_usage else b""
        self._started: set[int] = set()
        # Around the text of the common chunk: more text, nothing else.
        opening = b'"delta":{"content":' if chat else b'"text":'
        closing = (b"}" if chat else b"") + b',"logprobs":null,"finish_reason":null}]' + self._null_usage + b"}\n\n"
        self._plain = (self._head + b',"choices":[{"index":', b"," + opening, closing)

    def update(self, update: ChoiceUpdate) -> bytes:
        """The event for one choice's new output; its first also names the role."""
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
        if end.finish is Finish.ERROR:
            error = WeirError(Reason.parse(end.error_reason), end.message)
            parts.append(b'data: {"error":' + _json(error_object(error)) + b"}\n\n")
        elif self._include_usage:
            tail = {"choices": [], "usage": usage_object(end.usage), "weir": _extension(self._accepted, end)}
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


def embeddings_body(model_version: str, vectors: Sequence[Sequence[float]], tokens: int, *, as_base64: bool) -> bytes:
    """The body of `POST /v1/embeddings`; base64 packs little-endian float32."""
    data = [
        {
            "object": "embedding",
            "index": i,
            "embedding": base64.b64encode(struct.pack(f"<{len(v)}f", *v)).decode() if as_base64 else list(v),
        }
        for i, v in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _json({"object": "list", "data": data, "model": model_version, "usage": usage})


def response_id(accepted: Accepted, *, chat: bool) -> str:
    """OpenAI's id of a completion, made of our request id."""
    return f"{'chatcmpl' if chat else 'cmpl'}-{accepted.request_id}"


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
    failed = end.finish is Finish.ERROR  # a prompt of a list
    return {
        **({"error": error_object(WeirError(Reason.parse(end.error_reason), end.message))} if failed else {}),
        "simulated": accepted.simulated,
        "arm": accepted.arm,
        "zone": accepted.zone,
        "degraded": list(end.degraded),
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
