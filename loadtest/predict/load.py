"""Callers of a predictor: as the edge's Envoy would call it, over mTLS, open and closed loop."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from inference import open_inference_pb2 as oip
from inference.open_inference_pb2_grpc import GRPCInferenceServiceStub

from libs.authority.identity import Identity
from libs.pki import issue
from loadtest.figures import NothingFoundError, needed

Infer = Callable[..., Any]


@dataclass
class Seen:
    """What became of calls."""

    seconds: list[float] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    wall: float = 0.0
    """Seconds that it took altogether."""

    def served(self) -> Seen:
        """Itself.

        :raises NothingFoundError: calls were refused, or none was answered.
        """
        if self.refused:
            raise NothingFoundError(
                f"refused: {self.refused}, of {len(self.seconds) + sum(self.refused.values())} calls"
            )
        needed(len(self.seconds), "call was answered")
        return self

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.seconds) / self.wall


def question(model: str, name: str, rows: np.ndarray) -> oip.ModelInferRequest:
    """A raw request."""
    request = oip.ModelInferRequest(model_name=model)
    request.inputs.add(name=name, datatype="FP32", shape=rows.shape)
    request.raw_input_contents.append(rows.tobytes())
    return request


@contextlib.asynccontextmanager
async def calling(address: str, pki: Path) -> AsyncIterator[Infer]:
    """`infer(request, tenant=…, timeout=…)`, with Envoy's certificate and headers."""
    ca, key, cert = _material(pki)
    options = (("grpc.ssl_target_name_override", "predictor.weir.internal"),)
    credentials = grpc.ssl_channel_credentials(ca, key, cert)
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        stub = GRPCInferenceServiceStub(channel)
        known = {
            tenant: (("x-weir-tenant", tenant), ("x-weir-plan", "paid"), ("x-weir-scopes", "inference"))
            for tenant in ("acme", "flood")
        }

        def infer(request: oip.ModelInferRequest, tenant: str = "acme", timeout: float = 10.0) -> Any:
            return stub.ModelInfer(request, metadata=known[tenant], timeout=timeout)

        yield infer


def _material(pki: Path) -> tuple[bytes, bytes, bytes]:
    own = issue(pki, Identity("envoy"))
    return Path(own.ca).read_bytes(), Path(own.key).read_bytes(), Path(own.cert).read_bytes()


async def one(infer: Infer, request: oip.ModelInferRequest, seen: Seen, **how: Any) -> None:
    """One call, counted."""
    begun = time.perf_counter()
    try:
        await infer(request, **how)
    except grpc.aio.AioRpcError as error:
        name = error.code().name
        seen.refused[name] = seen.refused.get(name, 0) + 1
    else:
        seen.seconds.append(time.perf_counter() - begun)


async def closed(infer: Infer, request: oip.ModelInferRequest, at_once: int, seconds: float, **how: Any) -> Seen:
    """So many calls at once, each followed by the next."""
    seen, begun = Seen(), time.perf_counter()
    ends = begun + seconds

    async def caller() -> None:
        while time.perf_counter() < ends:
            await one(infer, request, seen, **how)

    await asyncio.gather(*(caller() for _ in range(at_once)))
    seen.wall = time.perf_counter() - begun
    return seen


async def opened(infer: Infer, request: oip.ModelInferRequest, rate: float, seconds: float, **how: Any) -> Seen:
    """Poisson arrivals, however long answers take."""
    seen, rng, begun = Seen(), random.Random(16), time.perf_counter()
    due = begun
    async with asyncio.TaskGroup() as group:
        while (due := due + rng.expovariate(rate)) < begun + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(infer, request, seen, **how))
    seen.wall = time.perf_counter() - begun
    return seen
