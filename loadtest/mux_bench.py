"""CPU per call over a multiplexed stream, both ends in this process, by batch size.

    .venv/bin/python loadtest/mux_bench.py [--seconds 1.5] [--batches 1 4 16 64]

A batch is that many calls outstanding at once from as many tasks; each task makes its next call when the last returns.
The handler is synchronous and answers a reservation. Figures are user + system CPU of the process per call.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

import uvloop
from weir.mux.v1 import mux_pb2
from weir.quota.v1 import quota_pb2, quota_pb2_grpc

from libs.clock import SystemClock
from libs.deadlines import Deadline
from libs.mux import Codec, MuxClient, MuxServer, Semantics
from libs.rpc import make_channel, make_server
from libs.rpc.server import bind

CLOCK = SystemClock()
CODEC = Codec.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse)


def answer(item, ctx):
    """Reserve whatever is asked."""
    return quota_pb2.QuotaReply(
        reserved=quota_pb2.Reserved(tokens=quota_pb2.LimitStatus(limit=1000, remaining=item.reserve.tokens))
    )


class Servicer(quota_pb2_grpc.QuotaServiceServicer):
    """The answering end."""

    def __init__(self) -> None:
        self.mux = MuxServer(codec=CODEC, handler=answer, instance="q-0", clock=CLOCK)

    async def Session(self, request_iterator, context):  # noqa: N802
        """Serve one stream."""
        await self.mux.serve(request_iterator, context)


def reserve() -> quota_pb2.QuotaCall:
    """A typical call."""
    return quota_pb2.QuotaCall(
        reserve=quota_pb2.Reserve(tenant="acme", model="weir-fast", request_id="req-0123456789abcdef", tokens=1234)
    )


async def measure(client: MuxClient, batch: int, seconds: float) -> tuple[float, float]:
    """(µs of CPU per call, calls per second) with `batch` calls outstanding."""
    ends_at = time.monotonic() + seconds
    done = 0

    async def caller() -> None:
        nonlocal done
        while time.monotonic() < ends_at:
            await client.call(reserve(), deadline=Deadline.after(5, CLOCK), semantics=Semantics.RETRY)
            done += 1

    cpu, wall = time.process_time(), time.monotonic()
    await asyncio.gather(*(caller() for _ in range(batch)))
    return (time.process_time() - cpu) / done * 1e6, done / (time.monotonic() - wall)


async def main(seconds: float, batches: list[int]) -> None:
    """Print one line per batch size."""
    server = make_server()
    quota_pb2_grpc.add_QuotaServiceServicer_to_server(Servicer(), server)
    port = bind(server, "127.0.0.1:0", tls=None)
    await server.start()
    async with make_channel(f"127.0.0.1:{port}", tls=None) as channel:
        client = MuxClient(
            open_stream=lambda: quota_pb2_grpc.QuotaServiceStub(channel).Session(wait_for_ready=True),
            codec=CODEC,
            hello=mux_pb2.Hello(service="gateway", instance="bench"),
            clock=CLOCK,
            rng=random.Random(),
        )
        running = asyncio.create_task(client.run())
        await client.wait_connected(5)
        await measure(client, 8, 0.3)
        print(f"{'outstanding':>11} {'cpu µs/call':>12} {'calls/s':>9}")  # noqa: T201
        for batch in batches:
            cpu, rate = await measure(client, batch, seconds)
            print(f"{batch:>11} {cpu:>12.1f} {rate:>9.0f}")  # noqa: T201
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await server.stop(None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64])
    options = parser.parse_args()
    uvloop.run(main(options.seconds, options.batches))
