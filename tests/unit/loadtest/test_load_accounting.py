"""CPU, memory and counters of processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import psutil
import pytest

from loadtest import accounting
from loadtest.accounting import Used

# Uses 0.2 s of CPU, says so, and waits for the end of its input.
BUSY = "import sys, time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\nsys.stdin.read()"


def test_since_is_the_difference_by_name() -> None:
    before, after = Used({"a": 1.0, "b": 2.0}, {}), Used({"a": 1.5, "b": 2.0}, {"a": 7})
    assert after.since(before) == {"a": 0.5, "b": 0.0}


def test_reads_another_process_to_better_than_a_tick() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdin is None or process.stdout is None:
            pytest.fail("no pipes")
        process.stdout.readline()
        used = accounting.read({"busy": process.pid})
        assert 0.2 <= used.cpu["busy"] < 2.0
        assert 2**20 < used.rss["busy"] < 2**30
        process.stdin.close()
        process.wait()
    with pytest.raises(ProcessLookupError):
        accounting.read({"busy": process.pid})


# Makes 64 MiB, forks, says the pids of both, and waits for the end of its input.
FORKED = """
import os, sys
held = bytearray(b"x") * (64 << 20)
pid = os.fork()
if pid: print(os.getpid(), pid, flush=True)
sys.stdin.read()
"""


def test_what_processes_share_counts_once_where_it_is_shared_out() -> None:
    with subprocess.Popen([sys.executable, "-c", FORKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        both = [int(pid) for pid in process.stdout.readline().split()]
        assert sum(map(accounting.resident_bytes, both)) > 2 * 64 * 2**20
        assert 64 * 2**20 < sum(map(accounting.proportional_bytes, both)) < 1.5 * 64 * 2**20
        process.stdin.close()
        process.wait()
    with pytest.raises(ProcessLookupError):
        accounting.proportional_bytes(process.pid)


def test_own_cpu_agrees_with_the_process_clock() -> None:
    assert accounting.cpu_seconds(os.getpid()) == pytest.approx(time.process_time(), abs=0.01)


def test_finds_children_that_would_escape() -> None:
    others = {str(one.pid): one.pid for one in psutil.Process().children(recursive=True)}  # of tests before this one
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        with pytest.raises(RuntimeError, match=str(child.pid)):
            accounting.check_no_children({"parent": os.getpid(), **others})
        accounting.check_no_children({"parent": os.getpid(), "child": child.pid, **others})
        child.communicate()


# Forks, says its own pid, and waits for the end of its input.
PARENT = "import os, sys\npid = os.fork()\nif pid: print(flush=True)\nsys.stdin.read()"


def test_predictors_children_are_nobodys_concern_whenever_they_come() -> None:
    others = {str(one.pid): one.pid for one in psutil.Process().children(recursive=True)}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as predictor:
        assert predictor.stdout is not None
        predictor.stdout.readline()
        accounting.check_no_children({"predictor-a": predictor.pid, "supervisor": os.getpid(), **others})
        with pytest.raises(RuntimeError, match="worker-a"):
            accounting.check_no_children({"worker-a": predictor.pid, "supervisor": os.getpid(), **others})
        predictor.communicate()
    accounting.check_no_children({"predictor-a": predictor.pid, **others})  # it is not even looked for


def test_reads_prometheus_text() -> None:
    text = '# HELP a b\n# TYPE a counter\na_total{x="1 2"} 3.0\nb 1e-05\n'
    assert accounting.samples(text) == {'a_total{x="1 2"}': 3.0, "b": 1e-05}


async def test_scrapes_over_http() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        found = b"a 1\n" if request.startswith(b"GET /metrics ") else b"b 1\n"
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + found)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await accounting.scrape(address) == {"a": 1.0}
