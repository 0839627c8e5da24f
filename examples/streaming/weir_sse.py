"""Reads a streamed answer to its end, whatever dies on the way: the gateway, the edge, the connection.

    WEIR_KEY=wk_… python weir_sse.py https://weir.example.org/v1/chat/completions < request.json

Every event has an id. When the stream breaks, the same request with the last id in `Last-Event-ID` goes on behind that
event, at whatever gateway answers; nothing is said twice, and nothing is billed twice. The standard library is all that
it needs: copy it.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import ssl
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

# What another gateway, or the same one a moment later, can mend.
LOST = {"worker_lost", "draining", "dependency_unavailable", "preempted", "internal"}
BUSY = {429, 502, 503, 504}


class Refused(Exception):
    """The request was refused, or its answer ended with an error."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(error.get("message", f"HTTP {status}"))
        self.status = status
        self.code = error.get("code")


def events(
    url: str, key: str, body: dict[str, Any], *, tries: int = 10, silence: float = 60.0
) -> Iterator[dict[str, Any]]:
    """The answer's events, each once. `tries` in a row may fail; `silence`: seconds without a byte that are a failure.

    :raises Refused: it will not be answered, or not further.
    :raises OSError: nobody was there for so many tries.
    """
    content = json.dumps({**body, "stream": True}).encode()  # the same bytes every time: the ids are of this request
    headers = {
        "authorization": f"Bearer {key}",
        "content-type": "application/json",
        "idempotency-key": str(uuid.uuid4()),  # so that a try before the first event begins nothing twice
    }
    failed, told = 0, False
    while True:
        try:
            for event_id, event in _once(url, headers, content, silence):
                if event_id is not None:
                    headers["last-event-id"] = event_id
                if event is None:
                    return
                if "error" in event:
                    raise Refused(200, event["error"])
                for choice in event["choices"]:
                    if choice.get("finish_reason") == "error":
                        choice["finish_reason"] = None  # the error that follows says whether it is the end
                failed, told = 0, True
                yield event
            raise ConnectionError("the stream ended too soon")
        except (Refused, OSError, http.client.HTTPException) as error:
            failed += 1
            mended = not isinstance(error, Refused) or error.code in LOST or error.status in BUSY
            # Without an id what came last cannot be gone on with exactly.
            if not mended or failed >= tries or (told and not headers.get("last-event-id")):
                raise
        pause = random.uniform(0, min(2.0, 0.05 * 2**failed))  # noqa: S311 - jitter, not a secret
        time.sleep(pause)


def _once(url: str, headers: dict[str, str], content: bytes, silence: float) -> Iterator[tuple[str | None, Any]]:
    """(id if it has one, event) of one connection; None instead of the event at the end."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        connection: Any = http.client.HTTPSConnection(
            parts.netloc, timeout=silence, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=silence)
    try:
        connection.request("POST", parts.path, content, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            text = answer.read()
            try:
                error = json.loads(text)["error"]
            except (ValueError, KeyError, TypeError):
                error = {}
            raise Refused(answer.status, error)
        event_id, data = None, ""
        for raw in iter(answer.readline, b""):
            line = raw.decode().rstrip("\r\n")
            if line.startswith("id:"):
                event_id = line[3:].strip()
            elif line.startswith("data:"):
                data += line[5:].strip()
            elif not line and data:  # only a whole event counts
                yield event_id, None if data == "[DONE]" else json.loads(data)
                event_id, data = None, ""
    finally:
        connection.close()


def main() -> int:
    """Prints what the first choice says."""
    try:
        for event in events(sys.argv[1], os.environ["WEIR_KEY"], json.load(sys.stdin)):
            for choice in event["choices"]:
                if choice["index"] == 0:
                    sys.stdout.write(choice["delta"].get("content") or "")
                    sys.stdout.flush()
    except (Refused, OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"{getattr(error, 'code', None) or type(error).__name__}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
