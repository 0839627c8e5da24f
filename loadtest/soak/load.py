"""Mixed load as its clients see it: streams over the edge, whole answers natively, embeddings, predictions, work of the
batch class.

A client is an honest one: it keeps connections, goes over another one when a connection breaks before anything of an
answer has come, and goes on with a stream that was cut where its events have ids (`Last-Event-ID`). It sends nothing a
second time that was answered, whatever the answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from weir.client import Client, Parameters, Tls

from libs.errors import WeirError
from loadtest.soak.book import BATCH, CALL, EMBED, PREDICT, ROWS, STREAM, Reference, Seen, common

MODEL = "weir-fast"
PREDICTS = "cancer-gbdt"
FEATURES = 30
PATIENCE = 30.0
"""Seconds without a word after which a client gives up; a heartbeat comes every ten."""
CONNECT = 3.0
TRIES = 3
"""Connections that a client opens for one request, or for the rest of one."""
_WORDS = ("river", "weir", "water", "stone", "bridge", "mill", "fish", "bank", "reed", "heron", "flood", "ice", "rain")


@dataclass(frozen=True, slots=True)
class Mix:
    """How many clients there are of each kind; each asks again as soon as it was answered."""

    streams: int = 8
    calls: int = 2
    embeds: int = 1
    batches: int = 2
    predictions: int = 2

    def kinds(self) -> list[str]:
        """The kind of each client."""
        unary = [CALL] * self.calls + [EMBED] * self.embeds + [PREDICT] * self.predictions
        return [STREAM] * self.streams + unary + [BATCH] * self.batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """How to reach the mesh."""

    edge: str
    """Base URL of the public API."""
    key: str
    tls: Tls
    """Of an internal workload."""


def question(number: int) -> str:
    """A prompt; no two begin alike, so that none is found in another's cache."""
    return " ".join(random.Random(f"question {number}").choices(_WORDS, k=12))


def table(number: int) -> list[float]:
    """The rows of a question to the model that predicts, one behind the other."""
    rng = random.Random(f"rows {number}")
    return [round(rng.uniform(0.0, 30.0), 3) for _ in range(ROWS * FEATURES)]


class Clients:
    """All clients; what each request was told is in `seen`."""

    def __init__(self, where: Where, *, questions: int, tokens: int, seed: int) -> None:
        """:param tokens: of each answer."""
        self.seen: list[Seen] = []
        self._where = where
        self._questions, self._tokens = questions, tokens
        self._rng = random.Random(f"load {seed}")
        self._began = time.monotonic()
        self._http = httpx2.AsyncClient(
            base_url=where.edge,
            headers={"authorization": f"Bearer {where.key}"},
            timeout=httpx2.Timeout(PATIENCE, connect=CONNECT),
            limits=httpx2.Limits(max_connections=256, keepalive_expiry=5.0),
            trust_env=False,
        )
        self._native = Client("xds:///gateway.weir.internal", tls=where.tls)
        self._send: dict[str, Callable[[Seen], Awaitable[None]]] = {
            STREAM: self._stream,
            BATCH: self._stream,
            CALL: self._call,
            EMBED: self._embed,
            PREDICT: self._predict,
        }

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    @property
    def failed(self) -> int:
        """Requests of which nothing came."""
        return sum(bool(each.failure) and not each.begun for each in self.seen)

    async def close(self) -> None:
        """Hang up."""
        await self._http.aclose()
        await self._native.close()

    async def answered(self) -> bool:
        """Whether a short question is."""
        seen = Seen(kind=STREAM, question=0)
        await self._stream(seen, 1)
        return seen.done

    async def references(self, *, every_length: bool = True) -> dict[int, Reference]:
        """What every question is answered with, token by token: it is asked for answers of each length. Without
        `every_length` only for the whole one: tokens are taken to be equally long then, and only of whole answers is
        it known how many they hold.

        :raises RuntimeError: one is not answered whole.
        """
        lengths = range(1, self._tokens + 1) if every_length else (self._tokens,)
        places = asyncio.Semaphore(16)

        async def text(number: int, tokens: int) -> str:
            async with places:
                seen = Seen(kind=STREAM, question=number)
                await self._stream(seen, tokens)
            if not seen.done:
                raise RuntimeError(f"the undisturbed mesh fails a request: {seen.failure}")
            return seen.text

        found: dict[int, Reference] = {}
        for number in range(self._questions):
            texts = await asyncio.gather(*(text(number, tokens) for tokens in lengths))
            once = {kind: Seen(kind=kind, question=number) for kind in (EMBED, PREDICT)}
            for kind, seen in once.items():
                await self._send[kind](seen)
                if not seen.done or seen.degraded:
                    raise RuntimeError(f"the undisturbed mesh fails to {kind}: {seen.failure or 'degraded'}")
            # A token may end inside a character, which its own answer spells otherwise than a longer one.
            ends = [common(each, texts[-1]) for each in texts]
            if not every_length:
                ends = [len(texts[-1]) * number // self._tokens for number in range(1, self._tokens + 1)]
            found[number] = Reference(texts[-1], tuple(ends), once[EMBED].text, once[PREDICT].text)
        return found

    async def run(self, kinds: Sequence[str], over: asyncio.Event) -> None:
        """Until `over` is set, and until what runs then has ended."""

        async def client(kind: str) -> None:
            while not over.is_set():
                seen = Seen(kind=kind, question=self._rng.randrange(self._questions), at=self.now)
                self.seen.append(seen)
                await self._send[kind](seen)
                if seen.failure and not seen.begun:
                    await asyncio.sleep(0.1)  # as whoever is refused waits a little

        await asyncio.gather(*map(client, kinds))

    async def _stream(self, seen: Seen, tokens: int = 0) -> None:
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": question(seen.question)}],
            "max_tokens": tokens or self._tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if seen.kind == BATCH:
            body["service_tier"] = "flex"
        reading = _Reading(seen)
        for _ in range(TRIES):
            headers = {"last-event-id": reading.last_id} if reading.last_id else {}
            seen.failure = ""
            try:
                async with self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                    if answer.status_code != 200:
                        seen.failure = _reason(await answer.aread(), answer.status_code)
                        return
                    seen.requests.append(answer.headers["x-request-id"])
                    seen.resumed = seen.begun
                    async for line in answer.aiter_lines():
                        reading.take(line)
            except httpx2.HTTPError as error:
                seen.failure = type(error).__name__
            if seen.done:
                seen.failure = ""
                return
            seen.failure = seen.failure or "the stream ended without its end"
            if seen.begun and not reading.last_id:
                return
            seen.reconnected = seen.reconnected or not seen.begun

    async def _call(self, seen: Seen) -> None:
        parameters = Parameters(max_tokens=self._tokens, temperature=0, ignore_eos=True)
        messages = [{"role": "user", "content": question(seen.question)}]
        try:
            done = await self._native.complete(MODEL, messages, timeout=PATIENCE, parameters=parameters)
        except WeirError as error:
            seen.failure = error.reason.name
            return
        seen.requests, seen.text = [done.accepted.request_id], done.text
        seen.told_tokens = done.end.usage.completion_tokens
        seen.begun = seen.done = True

    async def _embed(self, seen: Seen) -> None:
        answer = await self._whole(seen, "/v1/embeddings", {"model": MODEL, "input": question(seen.question)})
        if answer is not None:
            seen.text = json.dumps(answer["data"][0]["embedding"])

    async def _predict(self, seen: Seen) -> None:
        rows = {"name": "features", "shape": [ROWS, FEATURES], "datatype": "FP32", "data": table(seen.question)}
        answer = await self._whole(seen, f"/v2/models/{PREDICTS}/infer", {"inputs": [rows]})
        if answer is not None:
            outputs = sorted(answer["outputs"], key=lambda each: str(each["name"]))
            seen.text = json.dumps([each["data"] for each in outputs])
            seen.degraded = bool(answer.get("parameters", {}).get("weir_degraded"))

    async def _whole(self, seen: Seen, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """An answer that comes at once, over as many connections as it needs; None where there is none."""
        began = time.monotonic()
        for _ in range(TRIES):
            try:
                answer = await self._http.post(path, json=body)
            except httpx2.HTTPError as error:
                seen.failure, seen.reconnected = type(error).__name__, True
                continue
            if answer.status_code != 200:
                seen.failure = _reason(answer.content, answer.status_code)
                return None
            seen.requests.append(answer.headers["x-request-id"])
            seen.first = time.monotonic() - began
            seen.begun = seen.done = True
            seen.failure = ""
            return dict(answer.json())
        return None


class _Reading:
    """Takes the events of one answer, over as many connections as it needs."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._last = self._began = time.monotonic()
        self.last_id = ""
        self._next_id = ""  # of an event whose data has not come: whoever goes on behind it would miss that

    def take(self, line: str) -> None:
        """One line of server-sent events."""
        seen = self._seen
        if line.startswith("id:"):
            self._next_id = line[3:].strip()
            seen.resumable = True
            return
        if not line.startswith("data:"):
            return
        data = line[5:].strip()
        self.last_id = self._next_id
        if data == "[DONE]":
            seen.done = not seen.failure
            return
        event = json.loads(data)
        if "error" in event:
            seen.failure = str(event["error"].get("code") or "error")
            return
        if usage := event.get("usage"):
            seen.told_tokens = int(usage["completion_tokens"])
        for choice in event.get("choices", ()):
            if piece := choice["delta"].get("content"):
                now = time.monotonic()
                if seen.begun:
                    seen.gap = max(seen.gap, now - self._last)
                else:
                    seen.first = now - self._began
                self._last, seen.begun = now, True
                seen.text += piece


def _reason(body: bytes, status: int) -> str:
    try:
        return f"{status} {json.loads(body)['error']['code']}"
    except (ValueError, KeyError, TypeError):
        return str(status)
