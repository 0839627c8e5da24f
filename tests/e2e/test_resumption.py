"""Streams of a real model that are left and gone on with through the edge: the same words as undisturbed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.mesh import Mesh

ASK = [{"role": "user", "content": "Tell me a story about a river."}]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.0, "seed": 11},
    "choices": {"temperature": 1.0, "seed": 11, "n": 3},
    "log-probabilities": {"temperature": 1.0, "seed": 5, "logprobs": True, "top_logprobs": 0},
    "stop": {"temperature": 1.0, "seed": 3, "stop": ["."]},
    "structure": {
        "temperature": 1.0,
        "seed": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    },
}


@pytest.fixture
def http(mesh: Mesh) -> Iterator[httpx2.Client]:
    headers = {"authorization": f"Bearer {mesh.env['WEIR_KEY_ACME']}"}
    with httpx2.Client(base_url=mesh.env["WEIR_EDGE_URL"], headers=headers, timeout=60) as client:
        yield client


def told(http: httpx2.Client, body: dict[str, Any], last: str = "", most: int = 10**9) -> tuple[list[Any], str]:
    """(choices in their order, last id) of a stream that is left after so many events."""
    found: list[Any] = []
    headers = {"last-event-id": last} if last else {}
    with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("id:"):
                last = line.removeprefix("id:").strip()
            elif line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                found += event["choices"]
                if len(found) >= most:
                    break
    return found, last


def texts(choices: list[Any]) -> dict[int, str]:
    said: dict[int, str] = {}
    for choice in choices:
        said[choice["index"]] = said.get(choice["index"], "") + choice["delta"].get("content", "")
    return said


@pytest.mark.parametrize("way", list(WAYS))
def test_the_rest_is_what_it_would_have_been(http: httpx2.Client, way: str) -> None:
    body = {"model": "weir-quality", "messages": ASK, "max_tokens": 60, "stream": True, **WAYS[way]}
    whole, _ = told(http, body)
    parts, last = told(http, body, most=max(2, len(whole) // 3))
    for _ in range(2):
        more, last = told(http, body, last, most=max(2, len(whole) // 3))
        parts += more
    rest, _ = told(http, body, last)
    parts += rest
    assert texts(parts) == texts(whole)
    for index in texts(whole):
        ends = [
            [c["finish_reason"] for c in each if c["index"] == index and c["finish_reason"]] for each in (parts, whole)
        ]
        assert ends[0] == ends[1]
    if "logprobs" in WAYS[way]:
        tokens = [
            [one["token"] for choice in each if choice["logprobs"] for one in choice["logprobs"]["content"]]
            for each in (parts, whole)
        ]
        assert tokens[0] == tokens[1]


def test_the_edge_lets_ids_through_and_bounds_them(mesh: Mesh, http: httpx2.Client) -> None:
    body = {"model": "weir-fast", "messages": ASK, "max_tokens": 8, "stream": True}
    for given, status in (("A" * 2000, 400), ("A" * 100_000, 431)):
        answer = http.post("/v1/chat/completions", json=body, headers={"last-event-id": given})
        assert answer.status_code == status
    _, last = told(http, body, most=2)
    other = {"authorization": f"Bearer {mesh.env['WEIR_KEY_GLOBEX']}", "last-event-id": last}
    answer = http.post("/v1/chat/completions", json=body, headers=other)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "cursor_invalid")
