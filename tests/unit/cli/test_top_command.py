"""`weir top` in a terminal of 80 columns and 24 lines, and in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.commands import top
from tests.support.operator import ROOT, Operator
from tests.unit.cli.test_diagnose_command import FLOOD, Start, mesh

__all__ = ["mesh"]
BEGIN, END = b"\x1b[?1049h", b"\x1b[?1049l"
TENANTS = "".join(
    f'weir_tenant_requests_total{{tenant="tenant-{each}",outcome="stop"}} COUNT{each}\n' for each in range(8)
)
GATEWAY = f"""weir_gateway_outcomes_total{{operation="chat",outcome="stop",reason=""}} COUNT0
{TENANTS}"""
ROLLOUT = """weir_rollout_leader 1
weir_rollout_phase{alias="weir-fast",phase="canary"} 1
weir_rollout_weight{alias="weir-fast",arm="canary",model_version="weir-fast@2"} 500
weir_rollout_decisions_total{alias="weir-fast",kind="step"} COUNT
weir_error_budget_consumed{route="generate",tier="fast",objective="availability"} 0.25
"""
WORKERS = {
    f"worker-{each}": """weir_worker_model_state{model="weir-fast@1",state="ready"} 1
weir_worker_kv_cache_usage_perc 0.5
weir_worker_step_seconds_sum COUNT
"""
    for each in range(12)
}


class Terminal:
    """A command on one."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process, self.master, self.said = process, master, b""

    def read(self, until: Callable[[bytes], bool]) -> bytes:
        """What was said so far, once it is enough; or all, at its end."""
        while not until(self.said):
            assert select.select([self.master], [], [], 60)[0], self.said
            try:
                found = os.read(self.master, 65536)
            except OSError:  # nobody has the other side any more
                found = b""
            if not found:
                break
            self.said += found
        return self.said

    def screens(self) -> list[list[str]]:
        """Each picture, in lines without colours."""
        pictures = self.said.decode().split("\x1b[H")[1:]
        return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", each).split("\r\n") for each in pictures]


@contextmanager
def terminal(weir: Operator, lines: int = 24) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 80, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "services.cli", "top", "--every", "1"],
        cwd=ROOT,
        env={**environ, "WEIR_STATE_DIR": str(weir.state), "TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait(30)
        with open(os.devnull, "rb") as gone:
            os.dup2(gone.fileno(), master)
        os.close(master)


@pytest.fixture
def used(weir: Operator, mesh: Start) -> Operator:
    free = 'weir_admission_worker_free_sequences{pool="demo",worker="NAME"} 0\n'
    placed = FLOOD + "".join(free.replace("NAME", each) for each in WORKERS)
    mesh({"admission-1": placed, "gateway-1": GATEWAY, "rollout-1": ROLLOUT, **WORKERS})
    return weir


def test_a_picture_fits_the_terminal_and_has_something_of_everything(used: Operator) -> None:
    with terminal(used) as shown:
        shown.read(lambda said: said.count(b"\x1b[J") >= 2)
        for picture in shown.screens()[:2]:
            assert len(picture) <= 24
            assert all(len(line) <= 80 for line in picture), picture
            text = "\n".join(picture)
            for heading in ("PLANE", "POOL", "ROLLOUT", "BUDGET", "PROCESS", "TENANT", "HAPPENED", "… "):
                assert heading in text, text
        assert "rollout of weir-fast: step" in text
        assert "canary weir-fast@2 5%" in text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_it_gives_the_terminal_back_however_it_is_ended(used: Operator, number: int, code: int) -> None:
    with terminal(used) as shown:
        assert BEGIN in shown.read(lambda said: b"\x1b[J" in said)
        shown.process.send_signal(number)
        assert shown.read(lambda said: False).endswith(END)
        assert shown.process.wait(30) == code
        assert b"Traceback" not in shown.said


def test_it_ends_with_its_terminal(used: Operator) -> None:
    with terminal(used) as shown:
        shown.read(lambda said: b"\x1b[J" in said)
        with open(os.devnull, "rb") as gone:
            os.dup2(gone.fileno(), shown.master)  # the last that has the terminal leaves
        assert shown.process.wait(60) in (0, 129)


async def test_in_a_pipe_it_looks_once(used: Operator) -> None:
    answer = await used.process("top", "--every", 1)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.count("PLANE") == 1
    assert "\x1b" not in answer.out
    assert "rollout of weir-fast: step" in answer.out


async def test_who_has_read_enough_ends_it_quietly(used: Operator) -> None:
    process = await used.start("top", "--every", 1)
    assert process.stdout is not None
    process.stdout._transport.close()  # type: ignore[attr-defined]
    assert process.stderr is not None
    assert await process.stderr.read() == b""
    assert await process.wait() == 0


async def test_a_clock_that_is_set_changes_no_rate(used: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set back and forth by an hour between two looks."""
    monkeypatch.setenv("WEIR_STATE_DIR", str(used.state))
    real, jumps = time.time, iter((0.0, -3600.0, 3600.0))
    passed = [0.0]

    def sleep(seconds: float) -> None:
        passed[0] += seconds
        jump = next(jumps, 0.0)
        monkeypatch.setattr(time, "time", lambda: real() + jump)

    monkeypatch.setattr(top.time, "sleep", sleep)
    rates = [look.planes[0].requests for look in islice(top._looks(2.0, lambda: passed[0]), 3)]
    assert rates == [5.0] * 3


@given(
    st.lists(st.lists(st.text("ab", max_size=3), min_size=2, max_size=30), min_size=1, max_size=6), st.integers(0, 40)
)
def test_what_has_no_room_is_taken_from_the_longest(parts: list[list[str]], room: int) -> None:
    lines = top.fitting(parts, room)
    whole = [line for part in parts for line in [*part, ""]][:-1]
    if not room or len(whole) <= room:
        assert lines == whole
        return
    assert len(lines) <= room
    if room >= 3 * len(parts) - 1:
        for part in parts:
            assert part[0] in lines  # each has its heading and a line
