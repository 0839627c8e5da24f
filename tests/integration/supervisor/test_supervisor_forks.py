"""Processes whose first start is a fork of the supervisor: like fresh ones but for what they share, as mortal."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from libs.supervisor import control
from libs.supervisor.policy import RestartPolicy
from libs.supervisor.spec import ProcessSpec, SupervisorSpec, TcpProbe, dump

NEVER = TcpProbe(port=1)
TELL = """
import json, os, signal, sys
if __name__ == "__main__":
    told = {
        "argv": sys.argv[1:], "cwd": os.getcwd(), "path": sys.path[0], "variable": os.environ["SAID"],
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1], "input": os.read(0, 1).decode(),
        "leads": os.getsid(0) == os.getpid(), "line": open("/proc/self/cmdline").read().rstrip("\\0"),
        "main": sys.modules["__main__"].__spec__.name, "shares": "this" in sys.modules, "pid": os.getpid(),
    }
    print(json.dumps(told))
    print("on standard error", file=sys.stderr)
    signal.pause()
"""
BROKEN = "import os\nraise ImportError(f'nobody has imported {os.getpid()} yet')\n"


def package(tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "__main__.py").write_text(code)


def forked(tmp_path: Path, name: str, module: str, **fields: Any) -> ProcessSpec:
    argv = (sys.executable, "-m", module, "--config", "a b")
    return ProcessSpec(name=name, argv=argv, fork=True, cwd=str(tmp_path), env={"SAID": name}, **fields)


@contextlib.asynccontextmanager
async def supervising(
    tmp_path: Path, *processes: ProcessSpec, shared: str = "this"
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A supervisor in a process of its own: it must be the one that forks. It takes commands."""
    restart = RestartPolicy(initial=0.01, maximum=0.05, jitter=0)
    spec = SupervisorSpec(state_dir=str(tmp_path), processes=processes, restart=restart, shared=(shared,))
    (tmp_path / "spec.json").write_bytes(dump(spec))
    listening, tell = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "libs.supervisor", str(tmp_path / "spec.json"), "--echo", "--ready-fd", str(tell)),
        stdout=asyncio.subprocess.PIPE,
        pass_fds=(tell,),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))},
        limit=2**20,
    )
    os.close(tell)
    try:
        async with asyncio.timeout(60):
            await asyncio.to_thread(os.read, listening, 1)
            yield process
    finally:
        os.close(listening)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def said(process: asyncio.subprocess.Process, start: str) -> str:
    """The rest of the first line that has `start` in it."""
    assert process.stdout is not None
    async for line in process.stdout:
        if start in line.decode():
            return line.decode().partition(start)[2]
    raise AssertionError(f"{start!r} was never said")


def children(process: asyncio.subprocess.Process) -> Iterator[psutil.Process]:
    yield from psutil.Process(process.pid).children()


async def test_a_fork_is_like_a_fresh_start_but_for_what_it_shares(tmp_path: Path) -> None:
    package(tmp_path, "telling", TELL)
    async with supervising(tmp_path, forked(tmp_path, "one", "telling")) as supervisor:
        first = json.loads("{" + await said(supervisor, "{"))
        await said(supervisor, "on standard error")
        control.request(tmp_path, "kill", name="one", signal="KILL")
        second = json.loads("{" + await said(supervisor, "{"))
        control.request(tmp_path, "stop", timeout=20)
        assert await supervisor.wait() == 0
    assert (first.pop("shares"), second.pop("shares")) == (True, False)
    assert first.pop("pid") != second.pop("pid")
    line = first.pop("line")
    assert len(line) > 20
    assert second.pop("line").startswith(line)  # the supervisor's own may have been shorter
    assert first == second
    assert (first["argv"], first["cwd"], first["descriptors"]) == (["--config", "a b"], str(tmp_path), [0, 1, 2])


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
async def test_forks_that_were_never_let_go_end_with_the_supervisor(tmp_path: Path, end: signal.Signals) -> None:
    package(tmp_path, "telling", TELL)
    waiting = [forked(tmp_path, f"late-{number}", "telling", after=("first",)) for number in range(3)]
    first = forked(tmp_path, "first", "telling", readiness=NEVER)
    async with supervising(tmp_path, first, *waiting) as supervisor:
        await said(supervisor, "on standard error")
        status = control.request(tmp_path, "status")
        assert [each["pid"] is None for each in status["processes"]] == [False, True, True, True]
        left = list(children(supervisor))
        assert len(left) == 4
        supervisor.send_signal(end)
        await supervisor.wait()
        gone, alive = await asyncio.to_thread(psutil.wait_procs, left, 10)
        assert (len(gone), alive) == (4, [])
    assert "late" not in (tmp_path / "logs" / "first.log").read_text()


async def test_a_fork_that_cannot_import_what_it_needs_fails_the_start_and_says_why(tmp_path: Path) -> None:
    package(tmp_path, "broken", BROKEN)
    async with supervising(tmp_path, forked(tmp_path, "one", "broken", readiness=NEVER)) as supervisor:
        assert "nobody has imported" in await said(supervisor, "ImportError")
        assert await supervisor.wait() == 1


async def test_what_waits_for_nobody_comes_up_before_the_forks_are_made(tmp_path: Path) -> None:
    """The shared module's import is over when the plain process has connected to it."""
    package(tmp_path, "telling", TELL)
    waits = "import socket; s = socket.socket(socket.AF_UNIX); s.bind({0!r}); s.listen(); s.settimeout(20); s.accept()"
    (tmp_path / "meeting.py").write_text(waits.format(str(tmp_path / "m")))
    asks = (
        "import os, socket, signal\nwhile not os.path.exists({0!r}): pass\ns = socket.socket(socket.AF_UNIX)\n"
        "while s.connect_ex({0!r}): pass\nprint('met', flush=True)\nsignal.pause()"
    )
    plain = ProcessSpec(name="plain", argv=(sys.executable, "-S", "-c", asks.format(str(tmp_path / "m"))))
    async with supervising(tmp_path, plain, forked(tmp_path, "one", "telling"), shared="meeting") as supervisor:
        await said(supervisor, "met")
        status = control.request(tmp_path, "status")
        assert [each["pid"] is not None for each in status["processes"]] == [True, True]
