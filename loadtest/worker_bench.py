"""CPU per streamed token between a simulated worker and one reader, both in this process.

    .venv/bin/python loadtest/worker_bench.py [--sequences 64] [--tokens 400] [--interval 0.02]

Without an interval steps cost nothing and follow one another; with one, every sequence gets a token per interval.
"""

from __future__ import annotations

import argparse
import time

import uvloop
from weir.mux.v1 import mux_pb2
from weir.worker.v1 import worker_pb2, worker_pb2_grpc

from libs.deadlines import to_duration
from libs.rpc import make_channel
from libs.service import serve
from services.worker.app import build
from services.worker.config import Settings, SimulatedOptions


def submissions(count: int, tokens: int, first: int) -> worker_pb2.SessionRequest:
    """One frame of sequences."""
    items = [
        worker_pb2.Submit(
            handle=first + number,
            request_id=f"r{first + number}",
            model_version="m@1",
            prompt=[7] * 100,
            remaining=to_duration(600),
            sampling=worker_pb2.Sampling(max_tokens=tokens, temperature=1.0),
        )
        for number in range(count)
    ]
    return worker_pb2.SessionRequest(submissions=worker_pb2.Submissions(items=items))


async def read(rpc, count: int) -> tuple[int, int]:
    """(tokens, frames) until `count` sequences have ended."""
    tokens = frames = 0
    while count:
        step = (await rpc.read()).step
        frames += 1
        tokens += len(list(step.tokens))
        count -= len(step.finished)
    return tokens, frames


async def main(sequences: int, tokens: int, interval: float) -> None:
    """Print one line."""
    settings = Settings(
        service="worker",
        instance="bench",
        engine="simulated",
        models={"m@1": ""},
        simulated=SimulatedOptions(step_interval=interval, total_blocks=1 << 20, max_running=1024, max_context=100_000),
        require_grants=False,
    )
    async with serve(await build(settings), settings) as running:
        await running.ready.wait()
        async with make_channel(f"127.0.0.1:{running.port}", tls=None) as channel:
            rpc = worker_pb2_grpc.WorkerServiceStub(channel).Session()
            await rpc.write(worker_pb2.SessionRequest(hello=mux_pb2.Hello(service="gateway", instance="bench")))
            await rpc.read()
            await rpc.write(submissions(sequences, 20, 1))
            await read(rpc, sequences)
            cpu, wall = time.process_time(), time.monotonic()
            await rpc.write(submissions(sequences, tokens, 10_000))
            received, frames = await read(rpc, sequences)
            cpu, wall = time.process_time() - cpu, time.monotonic() - wall
            print(  # noqa: T201
                f"{received} tokens in {frames} frames: {cpu / received * 1e6:.2f} µs CPU per token, "
                f"{cpu / frames * 1e6:.0f} µs per frame, {received / wall:.0f} tokens/s"
            )
            rpc.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--interval", type=float, default=0.0)
    options = parser.parse_args()
    uvloop.run(main(options.sequences, options.tokens, options.interval))
