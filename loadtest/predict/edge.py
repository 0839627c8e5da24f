"""Predictions through the edge of a whole mesh, with keys, limits, usage and audit as everybody's: what one costs over
all processes, and what it takes longer than the bare model. Over HTTP with binary tensors, and over gRPC, as NVIDIA's
two clients ask."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import numpy as np
from inference.open_inference_pb2_grpc import GRPCInferenceServiceStub

from loadtest import accounting
from loadtest.figures import percentile
from loadtest.http_client import Connection, post
from loadtest.overload.output import say
from loadtest.predict.load import Infer, closed, opened, question
from loadtest.predict.models import FEATURES, seconds_of, trees
from loadtest.ready import edge_of, ready
from loadtest.scenarios import Cost, Edge, LoadError, cost_table
from tests.support.mesh import Mesh

MODEL, INPUT = "cancer-gbdt", "features"
FIGURES = ("edge_cpu_us", "edge_cpu_us_grpc", "added_ms_p50_edge", "added_ms_p99_edge")
CONNECTIONS, RATE, WARM_UP = 16, 200.0, 1.0
_SETTINGS = ("replicas.predictor=1", "predictor.log_level=warning")


async def through(folder: Path, seconds: float, windows: int) -> dict[str, float]:
    """The figures above, each of so many windows of so many seconds.

    :param folder: of the mesh, which is made for it.
    :raises LoadError: an answer is none.
    """
    row = np.random.default_rng(1).uniform(0, 20, (1, FEATURES)).astype(np.float32)
    with Mesh(folder, profile="bench", settings=_SETTINGS) as mesh:
        edge = edge_of(mesh, await ready(mesh))
        bare = statistics.median(seconds_of(trees(), row, seconds=0.3))
        async with _over_http(edge, row) as http, _over_grpc(edge, row) as remote:
            costs: dict[str, list[Cost]] = {"": [], "_grpc": []}
            for _ in range(windows):
                for name, infer in (("", http), ("_grpc", remote)):
                    costs[name].append(await _window(edge, infer, seconds))
            paced = (await opened(http, None, RATE, 2 * seconds)).served()
        for name, title in (("", "HTTP"), ("_grpc", "gRPC")):
            say(cost_table(costs[name], scale=1e6, unit=f"µs per prediction, {title}"))
    return {
        f"edge_cpu_us{name}": statistics.median(each.cpu_per_unit * 1e6 for each in costs[name]) for name in costs
    } | {
        "added_ms_p50_edge": (percentile(paced.seconds, 0.5) - bare) * 1e3,
        "added_ms_p99_edge": (percentile(paced.seconds, 0.99) - bare) * 1e3,
    }


async def _window(edge: Edge, infer: Infer, seconds: float) -> Cost:
    """Of all processes. Units: answers. All that is asked in the window is answered in it."""
    await closed(infer, None, CONNECTIONS, WARM_UP)
    before = accounting.read(edge.pids)
    seen = (await closed(infer, None, CONNECTIONS, seconds)).served()
    after = accounting.read(edge.pids)
    return Cost(len(seen.seconds), seen.wall, after.since(before), after.rss, after.strangers_since(before))


@contextlib.asynccontextmanager
async def _over_http(edge: Edge, row: np.ndarray) -> AsyncIterator[Infer]:
    """`infer(…)`: the row as a tenant's whose turn it is, on a kept connection that is free."""
    tensor = {"name": INPUT, "datatype": "FP32", "shape": row.shape, "parameters": {"binary_data_size": row.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = (("inference-header-content-length", str(len(head))),)
    path = f"/v2/models/{MODEL}/infer"
    turns = itertools.cycle(post(edge.host, path, key, head + row.tobytes(), headers=headers) for key in edge.keys)
    free: list[Connection] = []
    made: list[Connection] = []

    async def infer(_: object) -> None:
        if not free:
            made.append(edge.connection())
            free.append(made[-1])
        connection = free.pop()
        reply = await connection.send(next(turns))
        if reply.status != 200:
            raise LoadError(f"status {reply.status}: {reply.body[:300]!r}")
        free.append(connection)

    try:
        yield infer
    finally:
        for connection in made:
            connection.close()


@contextlib.asynccontextmanager
async def _over_grpc(edge: Edge, row: np.ndarray) -> AsyncIterator[Infer]:
    """The same; all calls on one connection."""
    asked = question(MODEL, INPUT, row)
    turns = itertools.cycle((("authorization", f"Bearer {key}"),) for key in edge.keys)
    async with grpc.aio.insecure_channel(f"{edge.host}:{edge.port}") as channel:
        call: Callable[..., Awaitable[object]] = GRPCInferenceServiceStub(channel).ModelInfer

        async def infer(_: object) -> None:
            await call(asked, metadata=next(turns), timeout=10.0)

        yield infer
