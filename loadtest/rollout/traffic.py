"""Callers of one alias: requests that come whether or not earlier ones were answered, each from one of many users."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.http_client import Connection, Reply, post
from loadtest.overload.samples import CONNECTION_LOST, OK
from loadtest.overload.senders import PATH, TOKEN_IDS, answer_of

_PATIENCE = 30.0
"""Seconds after which a caller gives up."""
_PROMPT_TOKENS = (16, 96)
_OUTPUT_TOKENS = (4, 24)


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as its caller saw it. Times are Unix seconds, so that they compare with the controller's."""

    alias: str
    user: str
    sent: float
    ended: float
    outcome: str
    """`OK`, or why not."""
    version: str
    """What answered; empty where the answer does not say."""
    arm: str
    ttft: float | None
    """Seconds."""
    tokens: int
    """Output tokens."""


@dataclass(slots=True)
class Traffic:
    """Poisson arrivals on one alias, over the OpenAI API through the edge."""

    address: str
    """The edge, "host:port"."""
    key: str
    alias: str
    rate: float
    """Requests per second."""
    users: int
    seed: int
    seen: list[Seen] = field(default_factory=list)
    """What was answered, in the order of the answers."""
    on_answer: Callable[[Seen], None] = lambda seen: None
    _idle: list[Connection] = field(default_factory=list)

    async def run(self) -> None:
        """Sends until cancelled; what was sent by then is given up."""
        rng = random.Random(f"{self.seed} {self.alias}")
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    due += rng.expovariate(self.rate)
                    await asyncio.sleep(max(0.0, due - loop.time()))
                    group.create_task(self._one(*self.asked(rng)))
        finally:
            for connection in self._idle:
                connection.close()

    def asked(self, rng: random.Random) -> tuple[str, bytes]:
        """The next request: who asks, and what goes over the wire."""
        prompt = rng.choices(TOKEN_IDS, k=rng.randint(*_PROMPT_TOKENS))
        user = f"user-{rng.randrange(self.users)}"
        body = {
            "model": self.alias,
            "prompt": prompt,
            "max_tokens": rng.randint(*_OUTPUT_TOKENS),
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "user": user,
        }
        return user, post(self._host, PATH, self.key, json.dumps(body, separators=(",", ":")).encode())

    def told(self, reply: Reply, start: float) -> tuple[str, float | None, int]:
        """Of a whole answer to what was sent at `start` (`time.perf_counter()`): outcome, seconds to the first token,
        tokens."""
        answer = answer_of(reply, start)
        return answer.outcome, answer.events[0] if answer.events else None, answer.tokens

    @property
    def _host(self) -> str:
        return self.address.rpartition(":")[0]

    async def _one(self, user: str, request: bytes) -> None:
        connection = self._idle.pop() if self._idle else Connection(self._host, int(self.address.rpartition(":")[2]))
        reply = Reply()
        sent, start = time.time(), time.perf_counter()
        try:
            async with asyncio.timeout(_PATIENCE):
                await connection.send(request, reply=reply)
        except asyncio.CancelledError:
            connection.close()
            raise
        except (OSError, TimeoutError) as error:
            connection.close()
            outcome = CONNECTION_LOST if isinstance(error, ConnectionError) else type(error).__name__
            answered = (outcome, None, len(reply.events))
        else:
            self._idle.append(connection)
            answered = self.told(reply, start)
        outcome, ttft, tokens = answered
        seen = Seen(
            alias=self.alias,
            user=user,
            sent=sent,
            ended=time.time(),
            outcome=outcome,
            version=reply.header("x-weir-model-version"),
            arm=reply.header("x-weir-arm"),
            ttft=ttft,
            tokens=tokens,
        )
        self.seen.append(seen)
        self.on_answer(seen)


def served(seen: Seen) -> bool:
    """The caller has a whole answer."""
    return seen.outcome == OK
