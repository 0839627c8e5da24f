"""What a decision of the rate limiter costs, over real gRPC; prints one line of JSON.

    python -m loadtest.limiter_bench [--decisions 60000]

The limiter runs in a process of its own (memory registry, no journal, no TLS); this process asks. CPU is the limiter
process's user + system time, so figures are per core whatever else runs here. `limiter_p99_ms` is wall time as the
caller sees it, with `IN_FLIGHT` calls open at any time on one stream, and depends on an idle machine.

    limiter_decisions_per_s   reserves and settles answered per second of the limiter's CPU
    limiter_p99_ms            99th percentile of their round trips
    refusal_cpu_us_edge       the limiter's CPU per ShouldRateLimit that it refuses
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from typing import Any

import uvloop
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from weir.mux.v1 import mux_pb2
from weir.quota.v1 import quota_pb2, quota_pb2_grpc
from weir.registry.v1 import registry_pb2

from libs.clock import SystemClock
from libs.deadlines import Deadline
from libs.mux import Codec, MuxClient, Semantics
from libs.registry import MemoryStore, Put
from libs.registry.keys import encode, key_of
from libs.rpc import make_channel
from libs.service import serve
from loadtest.accounting import cpu_seconds
from loadtest.helper import helper
from services.ratelimit.app import build
from services.ratelimit.config import Settings

IN_FLIGHT = 64
TENANTS = 100
EDGE_IN_FLIGHT = 32
_WARM_UP = 2_000


async def measure(decisions: int = 60_000, refusals: int = 6_000) -> dict[str, float]:
    """The figures of the module's docstring. Takes about ten seconds."""
    pipe = asyncio.subprocess.PIPE
    async with helper("-m", "loadtest.limiter_bench", "--serve", stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        port = int(await child.stdout.readline())
        async with make_channel(f"127.0.0.1:{port}", tls=None) as channel:
            figures = await _decisions(channel, child.pid, decisions)
            figures["refusal_cpu_us_edge"] = await _refusals(channel, child.pid, refusals)
    return figures


async def _decisions(channel: Any, pid: int, decisions: int) -> dict[str, float]:
    stub = quota_pb2_grpc.QuotaServiceStub(channel)
    client = MuxClient(
        open_stream=lambda: stub.Session(wait_for_ready=True),
        codec=Codec.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse),
        hello=mux_pb2.Hello(service="gateway", instance="gateway-0", zone="zone-a"),
        clock=SystemClock(),
        rng=random.Random(1),
    )
    running = asyncio.create_task(client.run())
    await client.wait_connected(20)
    waits: list[float] = []

    async def ask(call: quota_pb2.QuotaCall) -> None:
        began = time.perf_counter()
        await client.call(call, deadline=Deadline.after(30, SystemClock()), semantics=Semantics.RETRY)
        waits.append(time.perf_counter() - began)

    async def caller(lane: int, pairs: int, run: str) -> None:
        for turn in range(pairs):
            tenant, request_id = f"tenant-{(lane + turn) % TENANTS}", f"{run}-{lane}-{turn}"
            await ask(
                quota_pb2.QuotaCall(
                    reserve=quota_pb2.Reserve(
                        tenant=tenant,
                        model="weir-fast",
                        request_id=request_id,
                        tokens=700,
                        prompt_tokens=500,
                        max_output_tokens=200,
                        model_version="weir-fast@1",
                    )
                )
            )
            await ask(
                quota_pb2.QuotaCall(
                    settle=quota_pb2.Settle(
                        tenant=tenant, model="weir-fast", request_id=request_id, tokens=600, prompt_tokens=500
                    )
                )
            )

    async def run(count: int, name: str) -> None:
        pairs = max(1, count // (2 * IN_FLIGHT))
        await asyncio.gather(*(caller(lane, pairs, name) for lane in range(IN_FLIGHT)))

    await run(_WARM_UP, "warm")
    waits.clear()
    before = cpu_seconds(pid)
    await run(decisions, "run")
    spent = cpu_seconds(pid) - before
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    waits.sort()
    return {"limiter_decisions_per_s": len(waits) / spent, "limiter_p99_ms": 1e3 * waits[int(0.99 * len(waits))]}


async def _refusals(channel: Any, pid: int, refusals: int) -> float:
    stub = rls_pb2_grpc.RateLimitServiceStub(channel)
    request = rls_pb2.RateLimitRequest(domain="weir-edge")
    request.descriptors.add().entries.add(key="tenant", value="flood")
    tokens = request.descriptors.add()
    tokens.entries.add(key="tenant", value="flood")
    tokens.entries.add(key="unit", value="tokens")
    tokens.hits_addend.value = 100
    refused = 0

    async def caller(count: int) -> None:
        nonlocal refused
        for _ in range(count):
            answer = await stub.ShouldRateLimit(request, timeout=30)
            refused += answer.overall_code == rls_pb2.RateLimitResponse.OVER_LIMIT

    async def run(count: int) -> None:
        await asyncio.gather(*(caller(count // EDGE_IN_FLIGHT) for _ in range(EDGE_IN_FLIGHT)))

    await run(_WARM_UP)
    refused, before = 0, cpu_seconds(pid)
    await run(refusals)
    if refused != refusals // EDGE_IN_FLIGHT * EDGE_IN_FLIGHT:
        raise RuntimeError(f"{refused} of {refusals} requests were refused, not all")
    return 1e6 * (cpu_seconds(pid) - before) / refused


async def _serve() -> None:
    store = MemoryStore()
    seed: list[Any] = [
        registry_pb2.Limits(tenant=f"tenant-{number}", model=model, requests_per_minute=10**9, tokens_per_minute=10**9)
        for number in range(TENANTS)
        for model in ("*", "weir-fast")
    ]
    seed.append(registry_pb2.Limits(tenant="flood", model="*", requests_per_minute=1, tokens_per_minute=10_000))
    seed.append(registry_pb2.Price(model="*", input_microusd_per_million=50_000, output_microusd_per_million=200_000))
    await store.txn(puts=[Put(key_of(message), encode(message)) for message in seed])
    settings = Settings(service="ratelimit", instance="ratelimit-0", audit_target="")
    service = await build(settings, store=store)
    async with serve(service, settings) as running:
        await running.ready.wait()
        sys.stdout.write(f"{running.port}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="CPU of the rate limiter's decisions.")
    parser.add_argument("--decisions", type=int, default=60_000)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(_serve())
    else:
        sys.stdout.write(json.dumps(uvloop.run(measure(options.decisions))) + "\n")


if __name__ == "__main__":
    main()
