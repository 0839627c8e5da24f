"""Callers of the edge who never try again: every refusal and every broken stream counts."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx2 as httpx  # what the package openai brings

QUESTION = {"messages": [{"role": "user", "content": "Tell me about rivers."}], "max_tokens": 40, "stream": True}


@dataclass
class Load:
    """Streams chats until told to stop, in a few threads; some keep their connections and some open one for each."""

    url: str
    """Of the edge, by its address."""
    name: str
    """The name that its certificate must have."""
    ca: str
    key: str
    model: str
    callers: int = 2
    done: Counter[str] = field(default_factory=Counter)
    """Answers by how they ended; "ok" is a stream with text and its end."""
    failed: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._call_on, args=(each,)) for each in range(self.callers)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def ask(self, client: httpx.Client) -> str:
        """One chat, streamed: its text.

        :raises httpx.HTTPError: it was refused, or broke off.
        """
        headers = {"authorization": f"Bearer {self.key}", "host": self.name}
        options = {"headers": headers, "extensions": {"sni_hostname": self.name}}
        text, ended = "", False
        body = {"model": self.model, **QUESTION}
        with client.stream("POST", f"{self.url}/v1/chat/completions", json=body, **options) as answer:
            if answer.status_code != httpx.codes.OK:
                raise httpx.HTTPError(f"{answer.status_code} {answer.read()[:300]!r}")
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    ended = True
                elif line.startswith("data: "):
                    text += _text(json.loads(line.removeprefix("data: ")))
        if not ended or not text:
            raise httpx.HTTPError(f"it ended after {text!r}")
        return text

    def predict(self, client: httpx.Client, model: str, inputs: list[dict], timeout: float) -> dict:
        """What a model makes of these inputs, once it is loaded: until then something else would answer.

        :raises httpx.HTTPError: it is not, in time.
        """
        headers = {"authorization": f"Bearer {self.key}", "host": self.name}
        options = {"headers": headers, "extensions": {"sni_hostname": self.name}}
        url, deadline = f"{self.url}/v2/models/{model}/infer", time.monotonic() + timeout
        while True:
            answer = client.post(url, json={"inputs": inputs, "parameters": {"degradable": False}}, **options)
            if answer.status_code == httpx.codes.OK:
                return answer.json()
            if time.monotonic() > deadline:
                raise httpx.HTTPError(f"{answer.status_code} {answer.text[:300]}")
            self._stop.wait(0.5)

    def settle(self, timeout: float) -> None:
        """Until a first chat is answered.

        :raises httpx.HTTPError: none is, in time.
        """
        deadline = time.monotonic() + timeout
        with self.client(keep=False) as client:
            while True:
                try:
                    self.ask(client)
                except httpx.HTTPError:
                    if time.monotonic() > deadline:
                        raise
                    self._stop.wait(0.5)
                else:
                    return

    def client(self, *, keep: bool) -> httpx.Client:
        """A client of the edge."""
        limits = httpx.Limits(max_keepalive_connections=None if keep else 0)
        return httpx.Client(verify=ssl.create_default_context(cadata=self.ca), timeout=30, limits=limits)

    def wait(self, count: int, timeout: float) -> None:
        """Until so many more answers are there.

        :raises TimeoutError: they are not, in time.
        """
        wanted, deadline = self.done.total() + count, time.monotonic() + timeout
        while self.done.total() < wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{wanted - self.done.total()} of {count} answers are missing: {self.failed[-3:]}")
            self._stop.wait(0.1)

    def _call_on(self, number: int) -> None:
        with self.client(keep=number % 2 == 0) as client:
            while not self._stop.is_set():
                began = time.time()
                try:
                    self.ask(client)
                except httpx.HTTPError as error:
                    self.done["failed"] += 1
                    at = time.strftime("%H:%M:%S", time.gmtime(began))
                    self.failed.append(f"{at} {time.time() - began:.1f} s {type(error).__name__}: {error}")
                else:
                    self.done["ok"] += 1


def _text(event: dict) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", []))
