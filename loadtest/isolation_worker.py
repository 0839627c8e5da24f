"""A worker around `FreeCore`, in a thread or in a process: `python -m loadtest.isolation_worker thread 0.005`.

Prints one line, its port and the pid of its engine's process (0 in a thread), and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable

import uvloop

from libs.service import serve
from loadtest.free_core import MODEL, FreeCore
from services.worker.app import build
from services.worker.config import Settings
from services.worker.engines.port import Engine
from services.worker.engines.process import ProcessEngine
from services.worker.engines.threaded import ThreadedEngine


async def main(isolation: str, pace: float) -> None:
    """Serve."""
    made: list[ProcessEngine] = []

    def make(on_failure: Callable[[BaseException], None]) -> Engine:
        if isolation == "thread":
            return ThreadedEngine(FreeCore(pace=pace), on_failure=on_failure)
        made.append(ProcessEngine(functools.partial(FreeCore, pace=pace), on_failure=on_failure))
        return made[-1]

    settings = Settings(service="worker", instance="bench", models={MODEL: ""}, require_grants=False)
    async with serve(await build(settings, make_engine=make), settings) as running:
        await running.ready.wait()
        sys.stdout.write(f"{running.port} {made[0].pid if made else 0}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], float(sys.argv[2])))
