"""Calling executors whose model is `predictor_models.Obedient`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
from weir.registry.v1 import registry_pb2

from libs.clock import SystemClock
from services.predictor.executors import Executors, Ran
from services.predictor.files import Files

INLINE, THREAD = 0.0001, 0.002  # what the model is said to cost
CLOCK = SystemClock()


def make(folder: Path, seconds: float) -> None:
    """The model's folder."""
    folder.mkdir()
    (folder / "cost").write_text(str(seconds))
    for pipe in ("pipe", "waiting"):
        os.mkfifo(folder / pipe)


async def load(
    executors: Executors,
    folder: Path,
    *,
    seconds: float = THREAD,
    max_rows: int = 8,
    version: str = "m@1",
    lane: str = "",
) -> Path:
    """Make the folder and load it."""
    make(folder, seconds)
    await executors.load(version, Files(folder), registry_pb2.PredictionSpec(max_rows=max_rows, lane=lane))
    return folder


def call(
    executors: Executors,
    *values: float,
    outputs: frozenset[str] | None = None,
    within: float = 60.0,
    version: str = "m@1",
    tenant: str = "acme",
    width: int = 2,
) -> asyncio.Task[Ran]:
    """A request with a row of `width` equal numbers per value."""
    inputs = {"x": np.repeat(np.array(values, np.float32)[:, None], width, axis=1)}
    running = executors.run(
        version,
        inputs,
        outputs=outputs,
        rows=len(values),
        tenant=tenant,
        rank=0,
        deadline=CLOCK.monotonic() + within,
    )
    return asyncio.create_task(running)


def runs(folder: Path) -> list[list[float]]:
    """The first values of the rows of every execution."""
    return [[float(value) for value in line.split()] for line in (folder / "runs").read_text().splitlines()]


async def waiting(folder: Path) -> None:
    """Until the model has stopped at a WAIT."""
    await asyncio.to_thread((folder / "waiting").read_bytes)


async def go_on(folder: Path) -> None:
    """Let it go on."""
    await asyncio.to_thread((folder / "pipe").write_bytes, b"")
