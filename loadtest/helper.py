"""A process of Python's beside a bench's own: what it asks, or what asks beside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

from libs.supervisor import leash

_LEASH = (sys.executable, "-I", "-S", str(Path(leash.__file__)))


@contextlib.asynccontextmanager
async def helper(*words: str, stdin: int | None = None, stdout: int | None = None) -> AsyncIterator[Process]:
    """`python WORDS…` for as long as the block; however the bench's process ends, it ends with it.

    :raises RuntimeError: it ended before the block did: what was measured is not what was meant.
    """
    command = (*_LEASH, str(os.getpid()), sys.executable, *words)
    process = await asyncio.create_subprocess_exec(*command, stdin=stdin, stdout=stdout)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        code = await process.wait()
    if code != -signal.SIGKILL:
        raise RuntimeError(f"{' '.join(words)} has ended by itself, with status {code}")
