"""The first completion of a fresh mesh: streamed through Envoy over HTTP as any client would."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PATH = "/v1/chat/completions"


class CompletionError(Exception):
    """The completion failed; the message holds the status and the error's text."""


class NotYet(CompletionError):
    """The edge cannot serve yet (503); it may a moment later."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed answer."""

    text: str
    finish_reason: str
    model: str
    """The version that answered."""
    ttft_s: float
    """Seconds from sending the request to the first text."""
    first_text_at: float
    """The clock's seconds at the first text."""
    simulated: bool
    request_id: str


def stream_completion(
    host: str,
    port: int,
    *,
    key: str,
    model: str,
    prompt: str,
    max_tokens: int,
    on_text: Callable[[str], None],
    now: Callable[[], float] = time.monotonic,
    timeout: float = 30.0,
) -> Answer:
    """Streams one chat completion; `on_text` gets every piece as it arrives.

    Raises NotYet for a 503 before the first text, CompletionError for every other failure.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "stream": True,
        "seed": 7,
    }
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json", "accept": "text/event-stream"}
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    sent = now()
    try:
        connection.request("POST", PATH, body=json.dumps(body), headers=headers)
        response = connection.getresponse()
        if response.status != 200:
            kind = NotYet if response.status == 503 else CompletionError
            raise kind(f"HTTP {response.status}: {_error_text(response.read())}")
        return _collect(_events(response), dict(response.getheaders()), sent, on_text, now)
    except (OSError, http.client.HTTPException) as error:
        raise CompletionError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[dict]:
    """The JSON events of a server-sent event stream, until [DONE]."""
    while line := response.readline():
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)
    raise CompletionError("the stream ended without [DONE]")


def _collect(
    events: Iterator[dict],
    headers: dict[str, str],
    sent: float,
    on_text: Callable[[str], None],
    now: Callable[[], float],
) -> Answer:
    headers = {name.lower(): value for name, value in headers.items()}
    pieces: list[str] = []
    first: float | None = None
    finish = ""
    model = headers.get("x-weir-model-version", "")
    for event in events:
        if "error" in event:
            raise CompletionError(str(event["error"].get("message", event["error"])))
        model = model or event.get("model", "")
        for choice in event.get("choices", ()):
            piece = (choice.get("delta") or {}).get("content") or ""
            finish = choice.get("finish_reason") or finish
            if piece:
                first = now() if first is None else first
                pieces.append(piece)
                on_text(piece)
    if first is None or finish not in ("stop", "length"):
        raise CompletionError(f"no text came (finish reason {finish or 'none'})")
    return Answer(
        text="".join(pieces),
        finish_reason=finish,
        model=model,
        ttft_s=first - sent,
        first_text_at=first,
        simulated=headers.get("x-weir-simulated") == "true",
        request_id=headers.get("x-request-id", ""),
    )


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")[:500]
