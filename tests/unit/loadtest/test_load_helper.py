"""A bench's helper processes: none outlives it, and none is gone unnoticed."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from loadtest.helper import helper
from tests.support.mesh import ROOT

FOREVER = "import time; print('there', flush=True); time.sleep(3600)"
BENCH = f"""
import asyncio
from loadtest.helper import helper

async def main():
    async with helper("-c", {FOREVER!r}):
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_it_runs_until_the_end_of_the_block() -> None:
    async with helper("-c", FOREVER, stdout=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"there\n"
        assert process.returncode is None
    assert process.returncode == -9


async def test_one_that_ends_by_itself_is_told() -> None:
    with pytest.raises(RuntimeError, match="has ended by itself, with status 3"):
        async with helper("-c", "raise SystemExit(3)") as process:
            await process.wait()


async def test_what_goes_wrong_in_the_block_is_told_first() -> None:
    async def fails() -> None:
        async with helper("-c", "raise SystemExit(3)") as process:
            await process.wait()
            raise ValueError("something else")

    with pytest.raises(ValueError, match="else"):
        await fails()


def test_a_bench_that_a_signal_ends_takes_it_along() -> None:
    with subprocess.Popen([sys.executable, "-c", BENCH], cwd=ROOT, stdout=subprocess.PIPE) as bench:
        assert bench.stdout is not None
        assert bench.stdout.readline() == b"there\n"
        bench.terminate()
        assert bench.stdout.read() == b""  # to its end: both have closed it
