"""What the edge alone costs: CPU of Envoy, edge-auth and the limiter per request.

A known caller's request passes the whole edge and is refused at the gateway's first look (its temperature is below 0):
nothing is reserved for it, so what the limiter uses is the edge's. A bad key has the form of a real one, and no two
requests have the same, so that no memory of bad keys helps.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from itertools import count

from libs import apikeys
from loadtest import accounting
from loadtest.http_client import post
from loadtest.scenarios import PATH, WARM_UP, Cost, Edge, LoadError

EDGE = ("envoy", "edge-auth", "ratelimit")
CONNECTIONS = 16
_QUESTION = "x" * 400
_REFUSED = frozenset({401, 403, 429})
"""As a bad key, or as one failure too many."""


async def known(edge: Edge, *, seconds: float) -> Cost:
    """Tenants take turns. Units: answers.

    :raises LoadError: an answer is not the gateway's refusal.
    """
    body = _body(temperature=-1)
    turns = count()
    requests = [post(edge.host, PATH, key, body) for key in edge.keys]
    return await _load(edge, lambda: requests[next(turns) % len(requests)], frozenset({400}), seconds)


async def bad_keys(edge: Edge, *, seconds: float) -> Cost:
    """Random keys. Units: answers.

    :raises LoadError: an answer is not a refusal.
    """
    body = _body()
    return await _load(edge, lambda: post(edge.host, PATH, _random_key(), body), _REFUSED, seconds)


def _random_key() -> str:
    return apikeys.make(secrets.token_bytes).text


def _body(**more: object) -> bytes:
    return json.dumps({"model": "weir-fast", "messages": [{"role": "user", "content": _QUESTION}], **more}).encode()


async def _load(edge: Edge, request: Callable[[], bytes], statuses: frozenset[int], seconds: float) -> Cost:
    answers = 0
    stopped = False

    async def run() -> None:
        nonlocal answers
        connection = edge.connection()
        try:
            while not stopped:
                reply = await connection.send(request())
                if reply.status not in statuses:
                    raise LoadError(f"status {reply.status}: {reply.body[:300]!r}")
                answers += 1
                if reply.header("connection") == "close":
                    connection.close()
        finally:
            connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(run())
        await asyncio.sleep(WARM_UP)
        before, start, done = accounting.read(edge.pids), time.perf_counter(), answers
        await asyncio.sleep(seconds)
        after, end = accounting.read(edge.pids), time.perf_counter()
        done = answers - done
        stopped = True
    used = after.since(before)
    return Cost(
        units=done,
        wall=end - start,
        cpu={name: used[name] for name in EDGE},
        rss={name: after.rss[name] for name in EDGE},
        strangers=after.strangers_since(before),
    )
