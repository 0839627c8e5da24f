"""A process of Python's beside a bench's own: what it asks, or what asks beside it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from typing import Any

from libs.supervisor.leash import leashed


@contextlib.asynccontextmanager
async def helper(*words: str, **pipes: Any) -> AsyncIterator[Process]:
    """`python WORDS…` for as long as the block; however the bench's process ends, it ends with it.

    `pipes` as those of `asyncio.create_subprocess_exec`. Not where gRPC runs already under uvloop, which forks with
    Python's hooks: `subprocess.Popen(leashed(…))`, which forks with none, is for that.

    :raises RuntimeError: it ended before the block did: what was measured is not what was meant.
    """
    process = await asyncio.create_subprocess_exec(*leashed(sys.executable, *words), **pipes)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        code = await process.wait()
    if code != -signal.SIGKILL:
        raise RuntimeError(f"{' '.join(words)} has ended by itself, with status {code}")
