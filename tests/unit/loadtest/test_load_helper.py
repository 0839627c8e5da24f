"""A bench's helper processes: none outlives it, and none is gone unnoticed."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.helper import helper
from tests.support.mesh import ROOT, Mesh

FOREVER = "import time; print('there', flush=True); time.sleep(3600)"
HELPER = f"""
import asyncio, uvloop
from loadtest.helper import helper
from loadtest.overload import output

async def main():
    async with helper("-c", {FOREVER!r}):
        await asyncio.Event().wait()

output.begin()
uvloop.run(main())
"""
STARTED = f"""
import subprocess, sys, time
from libs.supervisor.leash import leashed

subprocess.Popen(leashed(sys.executable, "-c", {FOREVER!r}))
time.sleep(3600)
"""
GENERATOR = """
import tempfile, time
from pathlib import Path
from loadtest.overload import generator, output

class Driver:
    effort = {}
    def __init__(self, *_): pass
    async def drive(self):
        print("there", flush=True)
        time.sleep(3600)

generator._Driver = Driver
if __name__ == "__main__":
    output.begin()
    with tempfile.TemporaryDirectory() as folder:
        run = generator.Run(loads=(), routes={}, seconds=3600.0)
        with generator.Generator(run, Path(folder) / "out") as running:
            time.sleep(3600)
"""
STARTERS = ("Popen", "create_subprocess_exec", "create_subprocess_shell")


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


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda each: each.name)
@pytest.mark.parametrize("bench", [HELPER, STARTED, GENERATOR], ids=["helper", "leashed", "generator"])
def test_a_bench_that_a_signal_ends_takes_its_processes_along(bench: str, how: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "bench.py"  # a file, since what multiprocessing spawns reads it again
    script.write_text(bench)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(script)], env=environment, cwd=ROOT, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"there\n"
        running.send_signal(how)
        assert running.stdout.read() == b""  # to its end: all who had it have closed it


def test_no_bench_starts_a_process_that_may_outlive_it() -> None:
    """`subprocess.run` waits for what it starts; whatever else starts a process keeps it on a leash. Locust's sender
    ends with its input."""
    loose = [
        f"{path}:{node.lineno}"
        for path in (ROOT / "loadtest").rglob("*.py")
        if "locust" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in STARTERS
        if "leashed(" not in ast.unparse(node.args[0])
    ]
    assert not loose


def test_a_mesh_whose_start_is_ended_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def weir(command: str, *_: str, **__: object) -> None:
        asked.append(command)
        if command == "up":
            sys.exit(1)  # as a signal to the bench does

    mesh = Mesh(tmp_path)
    monkeypatch.setattr(mesh, "weir", weir)
    with pytest.raises(SystemExit), mesh:
        pass
    assert asked == ["up", "down"]
