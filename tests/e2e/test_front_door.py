"""The front door dies while it streams: whoever comes back gets the rest, word for word, and pays for it once."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from weir.client import Client, Parameters

from tests.e2e.conftest import client_for
from tests.e2e.test_operations import gauge
from tests.support.mesh import ROOT, Mesh, eventually

TOKENS = 600
BODY: dict[str, Any] = {
    "model": "weir-fast",
    "messages": [{"role": "user", "content": "Tell me about the river."}],
    "max_tokens": TOKENS,
    "temperature": 0.8,
    "seed": 7,
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
}
GATEWAYS = ("gateway", "gateway-2")
WORKERS = ("worker-a", "worker-b")


def reader() -> Any:
    """What users copy."""
    spec = importlib.util.spec_from_file_location("weir_sse", ROOT / "examples" / "streaming" / "weir_sse.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(mesh: Mesh, at: int = -1, then: Callable[[], object] = lambda: None, **more: Any) -> tuple[str, Any, str]:
    """What a stream says, its usage, its id; `then` happens after so many pieces."""
    text, usage, names, pieces = "", None, set(), 0
    url = f"{mesh.env['WEIR_EDGE_URL']}/v1/chat/completions"
    for event in reader().events(url, mesh.env["WEIR_KEY_ACME"], BODY | more):
        names.add(event["id"])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            text += choice["delta"].get("content", "")
            pieces += 1
            if pieces == at:
                then()
    assert len(names) == 1
    return text, usage, names.pop()


class Killer:
    """Kills the gateway that has the stream, without asking anybody for its number first. The workers are frozen
    meanwhile: the stream cannot end while its gateway is looked for."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._pids = {name: int(mesh.process(name)["pid"]) for name in GATEWAYS}
        self._workers = [int(mesh.process(name)["pid"]) for name in WORKERS]
        self.killed: dict[str, int] = {}

    def __call__(self) -> None:
        if not self.killed:
            self._signal_workers(signal.SIGSTOP)
            try:
                name = eventually(self._busy, what="the gateway with the stream")
                self.killed[name] = self._pids[name]
                os.kill(self._pids[name], signal.SIGKILL)
            finally:
                self._signal_workers(signal.SIGCONT)

    def _signal_workers(self, number: signal.Signals) -> None:
        for pid in self._workers:
            os.kill(pid, number)

    def wait_back(self) -> None:
        assert self.killed
        for name, pid in self.killed.items():
            self._mesh.wait_back(name, pid)

    def _busy(self) -> str:
        running = [name for name in GATEWAYS if gauge(self._mesh, name, "weir_gateway_active_generations") > 0]
        return running[0] if len(running) == 1 else ""


def records(mesh: Mesh, answer: str) -> list[dict[str, Any]]:
    """Of whoever gave a part of an answer, in their order."""
    found = [each["record"].get("request", {}) for each in mesh.weir_json("audit", "tail", "--limit", "50")["records"]]
    own = [each for each in found if answer.endswith((each.get("request_id") or "?", each.get("resumes") or "?"))]
    return sorted(own, key=lambda each: each.get("resumed_tokens", 0))


def test_a_gateway_is_killed_in_mid_stream(replicas: Mesh) -> None:
    whole, usage, _ = read(replicas)
    kill = Killer(replicas)
    text, told, answer = read(replicas, 40, kill)
    assert text == whole
    assert (told["completion_tokens"], told["prompt_tokens"]) == (TOKENS, usage["prompt_tokens"])
    kill.wait_back()
    # The gateway that was killed accounts for its part when it is back.
    lost, rest = eventually(lambda: (own := records(replicas, answer))[1:] and own, what="the records of both parts")
    assert lost["outcome"] == "gateway_lost"
    assert lost["prompt_tokens"] == usage["prompt_tokens"]
    assert rest.get("prompt_tokens", 0) == 0
    assert rest["completion_tokens"] + rest["resumed_tokens"] == TOKENS
    assert rest["resumed_tokens"] >= 40
    # What had left the gateway and did not arrive is billed by both: of a flush or two.
    assert 0 <= lost["completion_tokens"] - rest["resumed_tokens"] < 20


def test_envoy_is_killed_in_mid_stream(replicas: Mesh) -> None:
    """Its key leads the reader back to the gateway that goes on answering, so one request is all that is billed."""
    whole, usage, _ = read(replicas)
    pid = int(replicas.process("envoy")["pid"])
    text, told, answer = read(replicas, 40, lambda: os.kill(pid, signal.SIGKILL))
    assert text == whole
    assert told == usage
    own = eventually(lambda: records(replicas, answer), what="the record")
    assert [(each["completion_tokens"], each["outcome"]) for each in own] == [(TOKENS, "length")]
    replicas.wait_back("envoy", pid)


def test_a_stream_without_a_seed_goes_on_with_the_one_that_it_got(replicas: Mesh) -> None:
    kill = Killer(replicas)
    text, told, _ = read(replicas, 40, kill, seed=None)
    assert told["completion_tokens"] == TOKENS
    assert text
    kill.wait_back()


def test_an_answer_under_a_key_outlives_every_gateway(replicas: Mesh) -> None:
    """Whichever gateway the key leads to, it has died since and knows nothing: the answer is given again, not made."""
    with client_for(replicas, replicas.env["WEIR_KEY_ACME"]) as client:

        def ask(tokens: int = 30) -> Any:
            return client.chat.completions.with_raw_response.create(
                model="weir-fast",
                messages=BODY["messages"],
                max_tokens=tokens,
                temperature=0.8,
                extra_headers={"idempotency-key": "outlives"},
            )

        first = ask()
        killed = {name: replicas.kill(name) for name in GATEWAYS}
        for name, pid in killed.items():
            replicas.wait_back(name, pid)

        def made() -> float:
            return sum(gauge(replicas, name, "weir_worker_generation_tokens_total") for name in WORKERS)

        before = made()
        again = eventually(lambda: given(ask), what="a gateway")
        assert again.headers["idempotent-replayed"] == "true"
        assert again.parse().choices == first.parse().choices
        assert again.parse().id == first.parse().id
        assert made() == before
        with pytest.raises(openai.ConflictError):
            ask(31)


def given(ask: Callable[[], Any]) -> Any:
    """An answer; None while the edge has not found the gateways again."""
    try:
        return ask()
    except openai.InternalServerError:
        return None


async def test_the_typed_client_goes_on_by_itself(replicas: Mesh) -> None:
    edge = urlsplit(replicas.env["WEIR_EDGE_TLS_URL"]).netloc
    asked = Parameters(max_tokens=TOKENS, temperature=0.8, seed=7, ignore_eos=True)
    async with Client(edge, ca=replicas.env["WEIR_CA"], api_key=replicas.env["WEIR_KEY_ACME"]) as client:
        whole = await client.complete("weir-fast", "The river", parameters=asked, timeout=60)
        text, kill = "", await asyncio.to_thread(Killer, replicas)
        async with client.generate("weir-fast", "The river", parameters=asked, timeout=120) as stream:
            async for piece in stream:
                text += piece.text
                if len(text) > 100:
                    await asyncio.to_thread(kill)
    assert stream.reconnects >= 1
    assert text == whole.text
    assert stream.end is not None
    assert stream.end.usage == whole.end.usage
    await asyncio.to_thread(kill.wait_back)


def test_the_official_client_reads_streams_with_ids(replicas: Mesh) -> None:
    with client_for(replicas, replicas.env["WEIR_KEY_ACME"]) as client:
        stream = client.chat.completions.create(
            model="weir-fast", messages=BODY["messages"], max_tokens=20, seed=7, temperature=0.8, stream=True
        )
        told = [chunk for chunk in stream if chunk.choices]
    assert told[-1].choices[0].finish_reason in ("stop", "length")
