"""Streams one completion with the official `openai` package and prints what came, as JSON.

chat.py URL CA KEY SECONDS: asks again for so long where nobody answers.
"""

from __future__ import annotations

import json
import ssl
import sys
import time

import openai


def stream(client: openai.OpenAI) -> dict[str, object]:
    """The pieces, and why it ended."""
    pieces, finish = [], None
    for chunk in client.chat.completions.create(
        model="weir-fast",
        messages=[{"role": "user", "content": "Tell me about rivers."}],
        max_tokens=40,
        stream=True,
    ):
        for choice in chunk.choices:
            pieces += [choice.delta.content] if choice.delta.content else []
            finish = choice.finish_reason or finish
    return {"pieces": pieces, "finish": finish}


def main(url: str, ca: str, key: str, seconds: str) -> None:
    """Asks until there is an answer."""
    http = openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=ca))
    client = openai.OpenAI(base_url=url, api_key=key, http_client=http, max_retries=0, timeout=30.0)
    deadline = time.monotonic() + float(seconds)
    failures = 0
    while True:
        try:
            print(json.dumps(stream(client) | {"failures": failures}))  # noqa: T201
            return
        except (openai.APIConnectionError, openai.InternalServerError):
            if time.monotonic() > deadline:
                raise
            failures += 1
            time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
