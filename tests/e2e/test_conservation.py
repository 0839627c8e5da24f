"""Whatever way a request takes: what engines made for callers is what these were told, and are charged for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from tests.e2e.conftest import client_for
from tests.e2e.test_operations import gauge
from tests.support.mesh import Mesh, eventually

TENANT = "books"
ASK: list[Any] = [{"role": "user", "content": "Tell me about the river."}]
ALL: dict[str, Any] = {"model": "weir-fast", "max_tokens": 9, "temperature": 0, "extra_body": {"ignore_eos": True}}
WORKERS, PREDICTORS = ("worker-a", "worker-b"), ("predictor-a", "predictor-b")
AHEAD = 64
"""Tokens that an engine makes at most before it hears that nobody wants them any more."""
Books = Counter[str]
"""Tokens and rows: `prompt`, `completion`, `rows`."""


@pytest.fixture(scope="module")
def key(mesh: Mesh) -> str:
    """Of a tenant that nobody else asks for, known at the edge."""
    mesh.weir("set", "tenants", TENANT, "plan=paid", "--create", "--reason", "books")
    secret = mesh.weir("keys", "create", TENANT, "--scope", "inference", "--scope", "embeddings").stdout.strip()
    with client_for(mesh, secret) as client:
        eventually(lambda: _answers(client), what="the key being known")
    return secret


def _answers(client: OpenAI) -> bool:
    try:
        return bool(client.chat.completions.create(messages=ASK, **ALL | {"max_tokens": 1}).choices)
    except Exception as error:
        raise AssertionError from error


def charged(mesh: Mesh) -> Books:
    rows = mesh.weir_json("usage", "show", "--by", "tenant", "--tenant", TENANT)["rows"]
    row = rows[0] if rows else {}
    return Books(
        prompt=row.get("prompt_tokens", 0), completion=row.get("completion_tokens", 0), rows=row.get("rows", 0)
    )


def made(mesh: Mesh) -> Books:
    """By all workers and predictors, for whomever."""
    return Books(
        completion=round(sum(gauge(mesh, each, "weir_worker_generation_tokens_total") for each in WORKERS)),
        rows=round(sum(gauge(mesh, each, "weir_predictor_inference_count_total") for each in PREDICTORS)),
    )


class Difference:
    """What the mesh has made, and charged the tenant for, since."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._made, self._charged = made(mesh), charged(mesh)

    @property
    def made(self) -> Books:
        now = made(self._mesh)
        return Books({name: now[name] - self._made[name] for name in now})

    @property
    def charged(self) -> Books:
        now = charged(self._mesh)
        return Books({name: now[name] - self._charged[name] for name in now})


@pytest.fixture
def since(mesh: Mesh, key: str) -> Difference:
    """From when nothing of what went before is still on its way into the books."""
    last: list[tuple[Books, Books]] = []

    def still() -> bool:
        last.append((made(mesh), charged(mesh)))
        return len(last) > 2 and last[-1] == last[-2]

    eventually(still, what="the books standing still")
    return Difference(mesh)


@pytest.fixture
def client(mesh: Mesh, key: str) -> Iterator[OpenAI]:
    with client_for(mesh, key) as client:
        yield client


def used(told: Any) -> Books:
    return Books(prompt=told.prompt_tokens, completion=getattr(told, "completion_tokens", 0) or 0)


def streamed(client: OpenAI, **more: Any) -> Books:
    *_, last = client.chat.completions.create(
        messages=ASK, stream=True, stream_options={"include_usage": True}, **ALL | more
    )
    return used(last.usage)


def replayed(client: OpenAI) -> Books:
    """Twice, under one key: the second time it is the first one's answer."""
    asks = [
        client.chat.completions.create(messages=ASK, extra_headers={"idempotency-key": "once"}, **ALL) for _ in "ab"
    ]
    assert asks[0].choices == asks[1].choices
    return used(asks[0].usage)


def embedded_again(client: OpenAI) -> Books:
    """As `replayed`."""
    ask: dict[str, Any] = {"model": "weir-fast", "input": ["river", "heron"]}
    asks = [
        client.embeddings.with_raw_response.create(extra_headers={"idempotency-key": "vectors"}, **ask) for _ in "ab"
    ]
    assert [one.headers.get("idempotent-replayed") for one in asks] == [None, "true"]
    first, again = (one.parse() for one in asks)
    assert first == again
    return used(first.usage)


def predicted(client: OpenAI) -> Books:
    rows = {"name": "features", "shape": [3, 30], "datatype": "FP32", "data": [1.0] * 90}
    url = str(client.base_url).replace("/v1/", "/v2/models/cancer-gbdt/infer")
    headers = {"authorization": f"Bearer {client.api_key}"}
    answer = httpx2.post(url, json={"inputs": [rows]}, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    return Books(rows=3)


WAYS: dict[str, Callable[[OpenAI], Books]] = {
    "chat": lambda client: used(client.chat.completions.create(messages=ASK, **ALL).usage),
    "choices": lambda client: used(client.chat.completions.create(messages=ASK, n=3, **ALL).usage),
    "stream": streamed,
    "flex": lambda client: streamed(client, service_tier="flex"),
    "completion": lambda client: used(client.completions.create(prompt="The river", **ALL).usage),
    "prompts": lambda client: used(client.completions.create(prompt=["The river", "A mill", "Ice"], **ALL).usage),
    "embeddings": lambda client: used(client.embeddings.create(model="weir-fast", input=["river", "mill"]).usage),
    "replay": replayed,
    "replayed embedding": embedded_again,
    "prediction": predicted,
}


def test_what_was_answered_whole_was_made_told_and_charged_once(mesh: Mesh, client: OpenAI, since: Difference) -> None:
    told = Books()
    for way in WAYS.values():
        told += way(client)
    assert {"prompt", "completion", "rows"} <= told.keys()
    eventually(lambda: since.charged == told, what=f"{since.charged} charged being the {told} that were told")
    assert {**since.made} == {name: told[name] for name in ("completion", "rows")}


def test_of_what_was_left_halfway_is_charged_what_had_come_and_no_more_than_was_made(
    mesh: Mesh, client: OpenAI, since: Difference
) -> None:
    pieces = 0
    for _ in range(3):
        stream = client.chat.completions.create(
            messages=ASK, stream=True, **ALL | {"max_tokens": 400, "extra_body": {"ignore_eos": True}}
        )
        for chunk in stream:
            pieces += bool(chunk.choices and chunk.choices[0].delta.content)
            if pieces % 5 == 4:
                break
        stream.close()
    eventually(lambda: _idle(mesh), what="nothing running any more")
    eventually(lambda: since.charged["completion"] >= pieces, what="what had come being charged")
    assert pieces <= since.charged["completion"] <= since.made["completion"]
    assert since.made["completion"] - since.charged["completion"] <= 3 * AHEAD


def _idle(mesh: Mesh) -> bool:
    return not any(gauge(mesh, each, "weir_worker_num_requests_running") for each in WORKERS)


def test_the_books_agree_in_the_end(mesh: Mesh, key: str) -> None:
    def agree() -> bool:
        return mesh.weir("usage", "reconcile", check=False).returncode == 0

    eventually(agree, what="the books agreeing")  # the limiter writes every few seconds
