"""The engine's process of one worker is killed under a stream: its caller does not notice, the worker stays."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from openai import OpenAI

from tests.e2e.test_operations import gauge
from tests.support.mesh import Mesh, eventually

ASK = [{"role": "user", "content": "Tell me about the river."}]
WORKERS = ("worker-a", "worker-b")
TOKENS = 200


def engine_of(mesh: Mesh, worker: str) -> psutil.Process:
    """The process that a worker's engine runs in."""
    children = psutil.Process(int(mesh.process(worker)["pid"])).children()
    [engine] = [child for child in children if "services.worker.engines.child" in child.cmdline()]
    return engine


def ask(client: OpenAI, tokens: int = TOKENS) -> Iterator[str]:
    """The pieces of a greedy completion; the last is its finish reason and its number of tokens."""
    stream = client.chat.completions.create(
        model="weir-fast",
        messages=ASK,  # type: ignore[arg-type]
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    finish = ""
    for chunk in stream:
        if chunk.choices:
            finish = chunk.choices[0].finish_reason or finish
            yield chunk.choices[0].delta.content or ""
        if chunk.usage is not None:
            yield f"\n{finish} {chunk.usage.completion_tokens}"


@pytest.fixture
def engines(mesh: Mesh) -> Iterator[dict[str, psutil.Process]]:
    """By worker; none is left standing still."""
    found = {worker: engine_of(mesh, worker) for worker in WORKERS}
    yield found
    for engine in found.values():
        if engine.is_running():
            engine.resume()


def live(mesh: Mesh) -> dict[str, Any]:
    """What is registered of each worker, by its name."""
    found = mesh.weir_json("get", "endpoints")["resources"]
    return {each["metadata"]["name"].removeprefix("worker/"): each["status"] for each in found}


def test_a_killed_engine_costs_its_stream_nothing(mesh: Mesh, acme: OpenAI, engines: dict[str, psutil.Process]) -> None:
    whole = "".join(ask(acme))
    before = {worker: mesh.process(worker) for worker in WORKERS}
    registered = live(mesh)
    moved = gauge(mesh, "gateway", "weir_gateway_migrations_total")

    pieces = ask(acme)
    text = next(piece for piece in pieces if piece)
    for engine in engines.values():  # they stand still, so the stream cannot end before one of them is killed
        engine.suspend()
    busy = eventually(
        lambda: next((w for w in WORKERS if gauge(mesh, w, "weir_worker_num_requests_running")), ""),
        what="a busy worker",
    )
    restarts = gauge(mesh, busy, "weir_worker_engine_restarts_total")
    engines[busy].send_signal(signal.SIGKILL)
    engines.pop(busy)
    for engine in engines.values():
        engine.resume()
    text += "".join(pieces)
    assert text == whole
    assert text.endswith(f"\nlength {TOKENS}")
    assert gauge(mesh, "gateway", "weir_gateway_migrations_total") == moved + 1

    def up_again() -> bool:
        return (
            gauge(mesh, busy, "weir_worker_engine_restarts_total") > restarts
            and gauge(mesh, busy, "weir_worker_engine_restarting") == 0
        )

    eventually(up_again, what="the engine being up again")
    still = live(mesh)
    assert {worker: still[worker] for worker in WORKERS} == {worker: registered[worker] for worker in WORKERS}
    after = {worker: mesh.process(worker) for worker in WORKERS}
    assert [after[w]["pid"] for w in WORKERS] == [before[w]["pid"] for w in WORKERS]

    made = gauge(mesh, busy, "weir_worker_generation_tokens_total")

    def serves() -> bool:
        assert "".join(ask(acme, 4)).endswith("\nlength 4")
        return gauge(mesh, busy, "weir_worker_generation_tokens_total") > made

    eventually(serves, what="the worker serving again")
