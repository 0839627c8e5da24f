"""The process that sends: `python -m loadtest.locust.child`, started by locust's. It knows nothing of locust.

Reads `Settings` and then `Ask`s from standard input, writes a `Told` for each. At the end of its input it gives up what
is under way, leaves the mesh as it was found, and ends with an `Effort`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import uvloop

from loadtest.locust.messages import CHAT, OPERATOR, Ask, Effort, Told
from loadtest.locust.rollouts import Operator
from loadtest.locust.settings import Internal, Settings
from loadtest.overload.senders import Answer, HttpSender, NativeSender, Route, Sender
from simulation.workload import Arrival

PATIENCE = 60.0
"""Seconds until a caller gives up."""
UNREACHABLE = "UNREACHABLE"
"""What was to be called did not let itself be connected with."""
_CLOSE_SECONDS = 15.0
_MOST_LINE = 2**20
# Words that are one token each in most vocabularies, in no order that means anything.
_WORDS = (
    "water",
    "river",
    "small",
    "stream",
    "over",
    "stone",
    "bridge",
    "field",
    "town",
    "day",
    "night",
    "rain",
    "wind",
    "light",
    "road",
    "tree",
    "hill",
    "boat",
    "fish",
    "old",
    "new",
    "long",
    "slow",
    "quick",
    "time",
    "year",
    "hand",
)


class ChatSender(HttpSender):
    """Chat completions over the edge."""

    path = "/v1/chat/completions"

    def asked(self, arrival: Arrival) -> dict[str, Any]:
        content = " ".join(self._rng.choices(_WORDS, k=arrival.prompt_tokens))
        return {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": arrival.max_tokens,
            "user": arrival.client,
        }


class Child:
    """Does what it is asked to, all at once."""

    def __init__(self, settings: Settings, tell: Callable[[Told], None]) -> None:
        self._tell = tell
        self._chats = [_chat_sender(settings, tenant) for tenant in settings.keys]
        self._internal = settings.internal and _Internal(settings.internal, settings.model)
        self._operator = settings.operator and Operator(settings.operator, settings.model)
        self._running: dict[int, asyncio.Task[None]] = {}
        self.events = 0

    def take(self, ask: Ask) -> None:
        """Begin with it."""
        if ask.do != "leave":
            self._running[ask.id] = task = asyncio.create_task(self._do(ask))
            task.add_done_callback(lambda _: self._running.pop(ask.id))
        elif (task := self._running.get(ask.id)) is not None:
            task.cancel()

    async def close(self) -> None:
        """Give up what is under way and hang up."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closing = [*self._chats, *filter(None, (self._internal, self._operator))]
        await asyncio.gather(*(each.close() for each in closing))

    async def _do(self, ask: Ask) -> None:
        self._tell(await self._told(ask))

    async def _told(self, ask: Ask) -> Told:
        if ask.do == OPERATOR:
            assert self._operator is not None
            return await self._operator.roll_out(ask.id)
        if ask.do == CHAT:
            sender: Sender = self._chats[ask.key % len(self._chats)]
        else:
            assert self._internal is not None
            try:
                sender = await self._internal.opened()
            except TimeoutError:
                return Told(id=ask.id, outcome=UNREACHABLE)
        answer = await sender.send(_arrival(ask), timeout=PATIENCE)
        self.events += len(answer.events)
        return _told(ask.id, answer)


class _Internal:
    """A native sender that is connected when it is first needed, and again if that failed."""

    def __init__(self, how: Internal, model: str) -> None:
        if how.xds_bootstrap:
            os.environ["GRPC_XDS_BOOTSTRAP"] = how.xds_bootstrap
        route = Route(target=how.target, tls=how.tls)
        self._make = lambda: NativeSender(route, model, random.Random("internal"))
        self._opening: asyncio.Task[NativeSender] | None = None

    async def opened(self) -> NativeSender:
        """:raises TimeoutError: nobody lets it connect."""
        if self._opening is None or (self._opening.done() and self._opening.exception()):
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> NativeSender:
        sender = self._make()
        try:
            await sender.open()
        except BaseException:
            await sender.close()
            raise
        return sender

    async def close(self) -> None:
        """Hang up."""
        if self._opening is not None:
            self._opening.cancel()
            (opened,) = await asyncio.gather(self._opening, return_exceptions=True)
            if isinstance(opened, NativeSender):
                await opened.close()


def _chat_sender(settings: Settings, tenant: str) -> ChatSender:
    host, port = settings.address
    route = Route(address=f"{host}:{port}", key=settings.keys[tenant])
    tls = ssl.create_default_context(cafile=settings.ca or None) if settings.secure else None
    return ChatSender(route, settings.model, random.Random(f"chat {tenant}"), tls)


def _arrival(ask: Ask) -> Arrival:
    return Arrival(
        at=0.0,
        request_id=str(ask.id),
        tenant="",
        queue_class="paid",
        weight=1.0,
        prompt_tokens=ask.prompt_tokens,
        output_tokens=ask.output_tokens,
        max_tokens=ask.output_tokens,
        timeout=PATIENCE,
        client=ask.user,
    )


def _told(id: int, answer: Answer) -> Told:
    return Told(
        id=id,
        outcome=answer.outcome,
        seconds=round(answer.ended, 5),
        events=tuple(round(each, 5) for each in answer.events),
        tokens=answer.tokens,
        retry_after=answer.retry_after,
        version=answer.version,
    )


class _Out(asyncio.BaseProtocol):
    """Standard output."""

    def __init__(self) -> None:
        self.flushed = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        """All is written, or nobody reads any more."""
        self.flushed.set_result(None)


async def main() -> None:
    """Until the input ends."""
    loop = asyncio.get_running_loop()
    asks = asyncio.StreamReader(limit=_MOST_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asks), sys.stdin)
    out, written = await loop.connect_write_pipe(_Out, sys.stdout)
    encode = msgspec.json.Encoder().encode
    decode = msgspec.json.Decoder(Ask).decode
    settings = msgspec.json.decode(await asks.readline(), type=Settings)
    started = time.process_time()  # beyond Python's own start
    child = Child(settings, lambda told: out.write(encode(told) + b"\n"))
    try:
        while line := await asks.readline():
            child.take(decode(line))
    finally:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await child.close()
        finally:
            out.write(encode(Effort(cpu_seconds=time.process_time() - started, events=child.events)) + b"\n")
            out.close()
            await written.flushed


if __name__ == "__main__":
    # They are for locust, which then ends the input, though whole groups of processes may get them.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    uvloop.run(main())
