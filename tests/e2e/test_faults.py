"""Each process killed while requests run: what a fallback covers goes on, later requests succeed, nothing else ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from tests.e2e.conftest import client_for
from tests.e2e.test_operations import gauge
from tests.support.mesh import Mesh, eventually

ASK = [{"role": "user", "content": "Tell me about the river."}]
LEAVES = [
    "ratelimit",
    "router",
    "admission",
    "safety",
    "audit",
    "registry",
    "controlplane",
    "edge-auth",
    "collector",
    "records",
]


@pytest.fixture
def drill(simulated: Mesh) -> Mesh:
    return simulated


@pytest.fixture
def client(drill: Mesh) -> Iterator[OpenAI]:
    with client_for(drill, drill.env["WEIR_KEY_ACME"]) as connected:
        yield connected


def answered(client: OpenAI) -> bool:
    try:
        done = client.chat.completions.create(model="weir-fast", messages=ASK, max_tokens=4)
    except openai.APIError:
        return False
    return bool(done.choices)


class Streaming:
    """A long stream that runs while something is killed."""

    def __init__(self, client: OpenAI, *, tokens: int) -> None:
        self.pieces = 0
        self.finish: str | None = None
        self.error: Exception | None = None
        self.begun = threading.Event()
        self._client = client
        self._tokens = tokens
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Streaming:
        self._thread.start()
        if not self.begun.wait(60):
            raise TimeoutError("the stream did not begin")
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.join(120)

    def _run(self) -> None:
        try:
            stream = self._client.chat.completions.create(
                model="weir-fast",
                messages=ASK,
                max_tokens=self._tokens,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for chunk in stream:
                self.pieces += 1
                self.begun.set()
                if chunk.choices and chunk.choices[0].finish_reason:
                    self.finish = chunk.choices[0].finish_reason
        except openai.APIError as error:
            self.error = error
        finally:
            self.begun.set()


def pids(mesh: Mesh) -> dict[str, int]:
    return {row["name"]: row["pid"] for row in mesh.status()}


@pytest.mark.parametrize("service", LEAVES)
def test_a_leaf_may_die(drill: Mesh, client: OpenAI, service: str) -> None:
    before = pids(drill)
    with Streaming(client, tokens=150) as streaming:
        old = drill.kill(service)
        drill.wait_back(service, old)
        eventually(lambda: answered(client), what=f"requests after {service} came back")
    assert streaming.error is None, streaming.error
    assert streaming.finish == "length"
    after = pids(drill)
    assert {name for name in before if before[name] != after[name]} == {service}


def test_a_worker_may_die_and_its_stream_moves(drill: Mesh, client: OpenAI) -> None:
    with Streaming(client, tokens=200) as streaming:
        busy = next(w for w in ("worker-a", "worker-b") if gauge(drill, w, "weir_worker_num_requests_running"))
        old = drill.kill(busy)
        assert answered(client), "a new request found no worker"
        drill.wait_back(busy, old)
    assert streaming.error is None, streaming.error
    assert streaming.finish == "length"


def test_a_stream_that_loses_its_second_worker_too_waits_for_one(drill: Mesh, client: OpenAI) -> None:
    """Whoever asks meanwhile waits a moment or hears of an outage, and not that there is too much."""

    def busy() -> str:
        workers = ("worker-a", "worker-b")
        return eventually(
            lambda: next((w for w in workers if gauge(drill, w, "weir_worker_num_requests_running")), ""),
            what="a worker with the stream",
        )

    told: list[tuple[int, str, bool]] = []
    with Streaming(client, tokens=300) as streaming:
        first = busy()
        olds = {first: drill.kill(first)}
        second = "worker-b" if first == "worker-a" else "worker-a"
        eventually(lambda: gauge(drill, second, "weir_worker_num_requests_running"), what="the stream on the other one")
        olds[second] = drill.kill(second)
        for _ in range(3):
            try:
                client.chat.completions.create(model="weir-fast", messages=ASK, max_tokens=4)
            except openai.APIStatusError as error:
                told.append((error.status_code, str(error.code), "retry-after" in error.response.headers))
        for worker, old in olds.items():
            drill.wait_back(worker, old)
    assert (streaming.error, streaming.finish) == (None, "length")
    assert set(told) <= {(503, "no_workers", True), (503, "worker_lost", True)}


@pytest.mark.parametrize("service", ["gateway", "envoy"])
def test_the_path_itself_comes_back(drill: Mesh, client: OpenAI, service: str) -> None:
    before = pids(drill)
    old = drill.kill(service)
    drill.wait_back(service, old)
    eventually(lambda: answered(client), what=f"requests after {service} came back")
    after = pids(drill)
    assert {name for name in before if before[name] != after[name]} == {service}


def bad(mesh: Mesh) -> int:
    """Requests that counted against availability."""
    objectives = [
        one for each in mesh.weir_json("slo", "status", "-o", "json")["budgets"] for one in each["objectives"]
    ]
    return sum(int(one["bad"]) for one in objectives if one["objective"] == "availability")


def test_what_a_killed_gateway_lost_counts_against_availability(drill: Mesh, client: OpenAI) -> None:
    assert answered(client)  # so that something is known of the route
    before, failed = bad(drill), 0
    while not failed:
        old = drill.kill("gateway")
        failed = sum(not answered(client) for _ in range(3))
        drill.wait_back("gateway", old)
    eventually(lambda: answered(client), what="requests after the gateway came back")
    eventually(lambda: bad(drill) >= before + failed, what="what the edge lost")


def test_serving_goes_on_without_etcd(drill: Mesh, client: OpenAI) -> None:
    old = int(drill.process("etcd")["pid"])
    os.kill(old, signal.SIGSTOP)
    try:
        for _ in range(5):
            assert answered(client)
        refused = drill.weir("set", "limits", "globex/*", "requests_per_minute=77", check=False)
        assert refused.returncode != 0
    finally:
        os.kill(old, signal.SIGKILL)
    drill.wait_back("etcd", old)
    assert answered(client)

    def changed() -> bool:
        done = drill.weir("set", "limits", "globex/*", "requests_per_minute=60000", check=False)
        return done.returncode == 0

    eventually(changed, what="changes after etcd came back")
    assert drill.weir_json("audit", "verify")["ok"]
