"""A safety service with the shipped packs alone: `python -m loadtest.safety_service`.

Prints its port and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from libs.registry import MemoryStore
from libs.service import serve
from services.safety.app import build
from services.safety.config import Settings


async def main() -> None:
    """Serve."""
    settings = Settings(service="safety", instance="bench")
    async with serve(await build(settings, store=MemoryStore()), settings) as running:
        await running.ready.wait()
        sys.stdout.write(f"{running.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
