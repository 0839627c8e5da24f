"""A service as a real process: signals, exit codes, and what it says on the way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULE = "tests.integration.service.tiny_service"
HOLD = "/weir.test.Tiny/Hold"


class Child:
    """The process; its lines as they come."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def until(self, event: str) -> dict[str, Any]:
        """Read standard error up to the line of this event."""
        assert self.process.stderr is not None
        async with asyncio.timeout(30):
            while raw := await self.process.stderr.readline():
                self.lines.append(raw.decode())
                with contextlib.suppress(json.JSONDecodeError):
                    line = json.loads(raw)
                    if line.get("event") == event:
                        return dict(line)
        raise AssertionError(f"it ended without {event!r}:\n{''.join(self.lines)}")

    async def exit(self) -> int:
        """Its exit status; what it still wrote is kept."""
        assert self.process.stderr is not None
        async with asyncio.timeout(30):
            self.lines += (await self.process.stderr.read()).decode().splitlines(keepends=True)
            return await self.process.wait()

    @property
    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.lines if line.startswith("{")]


@contextlib.asynccontextmanager
async def child(directory: Path, flags: Sequence[str] = (), **settings: Any) -> AsyncIterator[Child]:
    file = directory / "tiny.json"
    file.write_text(json.dumps({"service": "tiny", "instance": "tiny-0", **settings}))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", MODULE, "--config", str(file), *flags, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_work_finish(tmp_path: Path, number: signal.Signals) -> None:
    async with child(tmp_path) as tiny:
        port = (await tiny.until("serving"))["port"]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            running = asyncio.ensure_future(channel.unary_unary(HOLD)(b"", timeout=20))
            await tiny.until("held")
            tiny.process.send_signal(number)
            assert await running == b"finished"
        assert await tiny.exit() == 0
    assert tiny.events == ["serving", "held", "draining", "stopped"]


async def test_a_drain_that_hangs_is_cut_at_its_limit(tmp_path: Path) -> None:
    async with child(tmp_path, hang=True, drain_seconds=0.3) as tiny:
        await tiny.until("serving")
        tiny.process.terminate()
        started = time.monotonic()
        assert await tiny.exit() == 0
        assert 0.3 <= time.monotonic() - started < 10
    assert "drain_cut" in tiny.events


async def test_a_failure_in_the_background_ends_the_process(tmp_path: Path) -> None:
    async with child(tmp_path, fail=True) as tiny:
        line = await tiny.until("service_failed")
        assert await tiny.exit() == os.EX_SOFTWARE
    assert line["error"] == "RuntimeError"
    assert "the background broke" in line["exception"]


async def test_a_taken_port_ends_the_process_and_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with child(tmp_path, port=port) as tiny:
            line = await tiny.until("service_failed")
            assert await tiny.exit() == os.EX_OSERR
    assert f"127.0.0.1:{port}" in line["exception"]


@pytest.mark.parametrize(("settings", "named"), [({"prot": 1}, "prot"), ({"port": "x"}, "port"), ({"hang": 1}, "hang")])
async def test_a_bad_configuration_says_so_by_its_exit_code(
    tmp_path: Path, settings: dict[str, Any], named: str
) -> None:
    async with child(tmp_path, **settings) as tiny:
        assert await tiny.exit() == os.EX_CONFIG
    (line,) = tiny.lines
    assert str(tmp_path / "tiny.json") in line
    assert named in line


async def test_a_command_line_that_makes_no_sense_is_told_from_a_bad_configuration(tmp_path: Path) -> None:
    async with child(tmp_path, flags=("--prot", "1")) as tiny:
        assert await tiny.exit() == os.EX_USAGE
    (line,) = tiny.lines
    assert "--prot" in line


async def test_a_start_that_fails_for_want_of_somebody_else_says_so(tmp_path: Path) -> None:
    async with child(tmp_path, missing=True) as tiny:
        line = await tiny.until("service_failed")
        assert await tiny.exit() == os.EX_UNAVAILABLE
    assert "nobody answers" in line["exception"]


async def test_a_process_that_is_still_starting_stops_when_told_to(tmp_path: Path) -> None:
    async with child(tmp_path, slow=True) as tiny:
        await tiny.until("building")
        tiny.process.terminate()
        assert await tiny.exit() == 0
    assert tiny.events == ["building", "stopped"]


async def test_whatever_hangs_the_process_ends_in_time(tmp_path: Path) -> None:
    async with child(tmp_path, stuck=True, drain_seconds=0.1) as tiny:
        await tiny.until("serving")
        tiny.process.terminate()
        assert await tiny.exit() == os.EX_SOFTWARE
    assert tiny.events[-1] == "stop_cut"


async def test_a_collector_that_is_away_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with child(tmp_path, trace_endpoint="127.0.0.1:9", drain_seconds=0) as tiny:
        await tiny.until("serving")
        tiny.process.terminate()
        assert await tiny.exit() == 0
