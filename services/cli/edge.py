"""A streamed chat completion over the edge's OpenAI API, as any HTTP client would ask for it."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from libs.errors import Reason, WeirError

PATH = "/v1/chat/completions"
_REASONS = {
    400: Reason.INVALID_REQUEST,
    401: Reason.UNAUTHENTICATED,
    403: Reason.PERMISSION_DENIED,
    404: Reason.MODEL_NOT_FOUND,
    413: Reason.PAYLOAD_TOO_LARGE,
    429: Reason.REJECTED_QUEUE_FULL,
    503: Reason.DEPENDENCY_UNAVAILABLE,
    504: Reason.DEADLINE_EXCEEDED,
}
"""For answers whose error code is not one of ours."""


class Refused(WeirError):
    """The edge answered with an error instead of a stream."""


def chat(
    url: str, *, ca: str, key: str, body: Mapping[str, Any], timeout: float, show: Callable[[str], None]
) -> dict[str, Any]:
    """Streams one chat completion; `show` gets every piece of text as it arrives.

    Returns `text`, `finish_reason`, `model` (the version), `simulated`, `request_id`, `usage` (or None), `ttft_s`
    (seconds to the first text, or None) and `first_text_at` (the monotonic clock's seconds then).

    :param url: the edge.
    :param ca: PEM file of the authority that its certificate is checked against, where the URL is https.
    :raises Refused: the edge's refusal; nothing was shown.
    :raises WeirError: DEPENDENCY_UNAVAILABLE when it does not answer or the stream breaks.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection = (
        http.client.HTTPSConnection(host, port, timeout=timeout, context=ssl.create_default_context(cafile=ca))
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=timeout)
    )
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json", "accept": "text/event-stream"}
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    started = time.monotonic()
    try:
        connection.request("POST", PATH, body=json.dumps(asked), headers=headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _refusal(response)
        return _collect(response, started, show)
    except (OSError, http.client.HTTPException) as error:
        raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, f"the edge at {url} does not answer: {error}") from error
    finally:
        connection.close()


def _collect(response: http.client.HTTPResponse, started: float, show: Callable[[str], None]) -> dict[str, Any]:
    pieces: list[str] = []
    answer: dict[str, Any] = {
        "text": "",
        "finish_reason": "",
        "model": response.getheader("x-weir-model-version", ""),
        "simulated": response.getheader("x-weir-simulated", "") == "true",
        "request_id": response.getheader("x-request-id", ""),
        "usage": None,
        "ttft_s": None,
        "first_text_at": None,
    }
    for event in _events(response):
        if "error" in event:
            raise _error(WeirError, event["error"], Reason.INTERNAL, None)
        answer["model"] = answer["model"] or event.get("model", "")
        answer["usage"] = event.get("usage") or answer["usage"]
        for choice in event.get("choices", ()):
            answer["finish_reason"] = choice.get("finish_reason") or answer["finish_reason"]
            piece = (choice.get("delta") or {}).get("content")
            if piece:
                if answer["ttft_s"] is None:
                    answer["first_text_at"] = time.monotonic()
                    answer["ttft_s"] = round(answer["first_text_at"] - started, 4)
                pieces.append(piece)
                show(piece)
    answer["text"] = "".join(pieces)
    return answer


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := response.readline():
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            yield json.loads(data)
        except ValueError as error:
            raise WeirError(Reason.INTERNAL, "the edge sent an event that is no JSON") from error
    raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the stream broke before its end")


def _refusal(response: http.client.HTTPResponse) -> WeirError:
    # The edge's own refusals carry OpenAI's code in the body and our reason beside it.
    told = Reason.__members__.get(response.getheader("x-weir-reason", ""))
    fallback = told or _REASONS.get(response.status, Reason.INTERNAL)
    raw = response.getheader("retry-after", "")
    retry_after = float(raw) if raw and raw.isdigit() else None
    body = response.read()
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")[:300] or f"HTTP {response.status}"
        return Refused(fallback, text, retry_after=retry_after)
    return _error(Refused, error, fallback, retry_after)


def _error(kind: type[WeirError], error: Any, fallback: Reason, retry_after: float | None) -> WeirError:
    if not isinstance(error, dict):
        return kind(fallback, str(error), retry_after=retry_after)
    name = str(error.get("code") or "").upper()
    reason = Reason.__members__.get(name, fallback)
    return kind(reason, str(error.get("message", "")), limit=str(error.get("param") or ""), retry_after=retry_after)
