"""The supervisor with real child processes: order, readiness, restarts, clean stop, death of the supervisor."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from libs.clock import SystemClock
from libs.config import TlsFiles
from libs.supervisor import control
from libs.supervisor.__main__ import serve
from libs.supervisor.logs import LogSink, log_path
from libs.supervisor.policy import LivenessPolicy, RestartPolicy
from libs.supervisor.spec import GrpcProbe, HttpProbe, LogLimits, ProcessSpec, SupervisorSpec, TcpProbe, dump
from libs.supervisor.supervisor import Supervisor
from tests.support.operator import Operator

FAST = RestartPolicy(initial=0.01, maximum=0.05, jitter=0)
PATIENT = LivenessPolicy()
IMPATIENT = LivenessPolicy(looks=1, seconds=0.0)

# Python without site packages starts in about 15 ms.
IDLE = "import signal; print('up', flush=True); signal.pause()"
GENTLE = """
import signal, sys
def end(*_):
    print("drained", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
signal.pause()
"""
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile 1: signal.pause()"
)
LISTEN = """
import socket, sys
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
while True:
    c, _ = s.accept()
    c.recv(1000)
    c.sendall(b"HTTP/1.1 %s x\\r\\n\\r\\n" % sys.argv[2].encode())
    c.close()
"""
PARENT = """
import subprocess, sys, signal
child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
print("grandchild", child.pid, flush=True)
signal.pause()
"""


def python(name: str, code: str, *arguments: str, **fields: Any) -> ProcessSpec:
    return ProcessSpec(name=name, argv=(sys.executable, "-S", "-c", code, *arguments), **fields)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class WaitingSink(LogSink):
    """A log sink on whose lines a test can wait."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path, LogLimits())
        self._grown = asyncio.Event()

    def line(self, name: str, line: bytes) -> None:
        super().line(name, line)
        self._grown.set()
        self._grown = asyncio.Event()

    async def has(self, name: str, text: str, times: int = 1) -> None:
        """Waits until `text` is in so many of the last lines of a process."""
        async with asyncio.timeout(20):
            while sum(text in line for line in self.tail(name)) < times:
                await self._grown.wait()


@contextlib.asynccontextmanager
async def running(
    tmp_path: Path,
    *processes: ProcessSpec,
    restart: RestartPolicy = FAST,
    liveness: LivenessPolicy = PATIENT,
    sink: WaitingSink | None = None,
) -> AsyncIterator[Supervisor]:
    spec = SupervisorSpec(state_dir=str(tmp_path), processes=processes, restart=restart, liveness=liveness)
    sink = sink or WaitingSink(tmp_path)
    supervisor = Supervisor(spec, sink=sink, clock=SystemClock(), rng=Random(1))
    task = asyncio.create_task(supervisor.run())
    try:
        yield supervisor
    finally:
        supervisor.stop()
        await task
        sink.close()


async def until(supervisor: Supervisor, condition: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, Any]:
    """The first status whose processes, by name, satisfy `condition`."""
    async with asyncio.timeout(20):
        async for status in supervisor.watch():
            if condition({p["name"]: p for p in status["processes"]}):
                return status
    raise AssertionError(f"never seen; last: {status}")


async def until_state(supervisor: Supervisor, state: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        async for status in supervisor.watch():
            if status["state"] == state:
                return status
    raise AssertionError(f"{state} never seen; last: {status}")


def lines(tmp_path: Path) -> list[str]:
    return [line.replace(" ", "") for line in log_path(tmp_path).read_text().splitlines()]


async def test_a_process_starts_only_when_what_it_needs_is_ready(tmp_path: Path) -> None:
    port = free_port()
    base = python("base", LISTEN, str(port), "200", readiness=HttpProbe(port=port))
    async with running(tmp_path, python("late", IDLE, after=("base",)), base) as supervisor:
        await until_state(supervisor, "up")
        await until(supervisor, lambda p: p["late"]["ready"])
    order = [line for line in lines(tmp_path) if line in ("base|listening", "late|up")]
    assert order[0] == "base|listening"


async def test_a_process_that_answers_with_an_error_is_not_ready(tmp_path: Path) -> None:
    port = free_port()
    sick = python("sick", LISTEN, str(port), "503", readiness=HttpProbe(port=port), ready_timeout=0.3)
    async with running(tmp_path, sick, python("well", GENTLE)) as supervisor:
        status = await until_state(supervisor, "failed")
    assert status["failure"]["name"] == "sick"
    assert "not ready" in status["failure"]["reason"]
    assert all(p["pid"] is None for p in status["processes"])


async def test_a_death_at_start_fails_with_its_last_lines_and_stops_the_rest(tmp_path: Path) -> None:
    dying = python("dying", "import sys; print('no such thing: etcd'); sys.exit(7)", readiness=TcpProbe(port=1))
    async with running(tmp_path, dying, python("other", GENTLE)) as supervisor:
        status = await until_state(supervisor, "failed")
    assert status["failure"] == {
        "name": "dying",
        "reason": "exited with code 7",
        "last_lines": ["no such thing: etcd"],
    }
    assert all(p["pid"] is None for p in status["processes"])


async def test_a_missing_program_fails_the_start(tmp_path: Path) -> None:
    missing = ProcessSpec(name="missing", argv=("/nonexistent/program",), readiness=TcpProbe(port=free_port()))
    async with running(tmp_path, missing) as supervisor:
        status = await until_state(supervisor, "failed")
    assert status["failure"]["reason"] == "exited with code 127"
    assert status["failure"]["last_lines"] == ["cannot start /nonexistent/program: No such file or directory"]


async def test_a_missing_folder_fails_the_start(tmp_path: Path) -> None:
    lost = python("lost", IDLE, cwd="/nonexistent/folder")
    async with running(tmp_path, lost) as supervisor:
        status = await until_state(supervisor, "failed")
    assert "cannot be started" in status["failure"]["reason"]
    assert "/nonexistent/folder" in status["failure"]["reason"]


async def test_a_killed_process_comes_back_and_the_count_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, python("a", GENTLE), python("b", GENTLE)) as supervisor:
        before = {p["name"]: p for p in (await until_state(supervisor, "up"))["processes"]}
        supervisor.kill("a", signal.SIGKILL)
        status = await until(supervisor, lambda p: p["a"]["restarts"] == 1 and p["a"]["ready"])
        after = {p["name"]: p for p in status["processes"]}
    assert after["a"]["pid"] != before["a"]["pid"]
    assert after["a"]["last_exit"] == -signal.SIGKILL
    assert after["b"] | {"uptime_s": 0} == before["b"] | {"uptime_s": 0}


async def test_restart_on_request_drains_and_skips_the_backoff(tmp_path: Path) -> None:
    sink = WaitingSink(tmp_path)
    never = RestartPolicy(initial=3600, maximum=3600, jitter=0)
    async with running(tmp_path, python("a", GENTLE), restart=never, sink=sink) as supervisor:
        await sink.has("a", "up")
        await supervisor.restart("a")
        await until(supervisor, lambda p: p["a"]["restarts"] == 1 and p["a"]["ready"])
    assert "a|drained" in lines(tmp_path)


@pytest.mark.parametrize("hook", ["pass", "raise SystemExit(1)", "import signal; signal.pause()"])
async def test_what_lets_requests_end_first_runs_before_a_restart_and_not_before_a_stop(
    tmp_path: Path, hook: str
) -> None:
    """And however it ends, the restart comes."""
    before = ("-c", f"open('before', 'a').write('x')\n{hook}")
    gentle = python("a", GENTLE, stop_grace=0.5, cwd=str(tmp_path), before_restart=(sys.executable, "-S", *before))
    sink = WaitingSink(tmp_path)
    async with running(tmp_path, gentle, sink=sink) as supervisor:
        await sink.has("a", "up")
        await supervisor.restart("a")
        await sink.has("a", "up", times=2)
    assert lines(tmp_path).count("a|drained") == 2
    assert (tmp_path / "before").read_text() == "x"


async def test_readiness_follows_the_process_after_start_up(tmp_path: Path) -> None:
    port = free_port()
    base = python("base", LISTEN, str(port), "200", readiness=TcpProbe(port=port))
    async with running(tmp_path, base) as supervisor:
        await until_state(supervisor, "up")
        supervisor.kill("base", signal.SIGKILL)
        await until(supervisor, lambda p: not p["base"]["ready"])
        await until(supervisor, lambda p: p["base"]["ready"])


async def test_stop_goes_backwards_and_lets_each_drain(tmp_path: Path) -> None:
    processes = (
        python("store", GENTLE),
        python("leaf", GENTLE, after=("store",)),
        python("front", GENTLE, after=("store",), uses=("leaf",)),
    )
    sink = WaitingSink(tmp_path)
    async with running(tmp_path, *processes, sink=sink):
        for name in ("store", "leaf", "front"):
            await sink.has(name, "up")
    drained = [line for line in lines(tmp_path) if line.endswith("drained")]
    assert drained == ["front|drained", "leaf|drained", "store|drained"]


async def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    sink = WaitingSink(tmp_path)
    async with running(tmp_path, python("stubborn", STUBBORN, stop_grace=0.05), sink=sink) as supervisor:
        await sink.has("stubborn", "up")
        supervisor.stop()
        status = await until_state(supervisor, "stopped")
    assert status["processes"][0]["last_exit"] == -signal.SIGKILL


async def test_grandchildren_are_gone_after_a_stop(tmp_path: Path) -> None:
    sink = WaitingSink(tmp_path)
    async with running(tmp_path, python("parent", PARENT), sink=sink) as supervisor:
        await sink.has("parent", "grandchild")
        grandchild = os.pidfd_open(int(sink.tail("parent")[0].split()[1]))
        supervisor.stop()
        await until_state(supervisor, "stopped")
    await end_of(grandchild)


async def end_of(pidfd: int) -> None:
    """Waits until a process that is not our child has ended; fails after ten seconds."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(10):
            await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


async def test_stop_during_start_up_starts_nothing_more(tmp_path: Path) -> None:
    never = python("never", IDLE, readiness=TcpProbe(port=free_port()))
    async with running(tmp_path, never, python("late", IDLE, after=("never",))) as supervisor:
        await until(supervisor, lambda p: p["never"]["pid"] is not None)
        supervisor.stop()
        status = await until_state(supervisor, "stopped")
    assert [p["last_exit"] for p in status["processes"]] == [-signal.SIGTERM, None]


LISTEN_LATER = f"""
import os, sys
if os.path.exists(sys.argv[3]):
    open(sys.argv[4]).read()
{LISTEN}"""


async def test_weir_restart_waits_until_the_process_is_ready_again(tmp_path: Path) -> None:
    port, later, gate = free_port(), tmp_path / "later", tmp_path / "gate"
    os.mkfifo(gate)
    process = python("a", LISTEN_LATER, str(port), "200", str(later), str(gate), readiness=HttpProbe(port=port))
    spec = SupervisorSpec(state_dir=str(tmp_path), processes=(process,), restart=FAST)
    started = asyncio.Event()
    server = asyncio.create_task(serve(spec, on_listening=started.set))
    await started.wait()

    def first(holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        return next(p for s in control.stream(tmp_path, "watch", timeout=20) for p in s["processes"] if holds(p))

    old = await asyncio.to_thread(first, lambda row: bool(row["ready"]))
    later.touch()
    restart = asyncio.create_task(Operator(tmp_path)("restart", "a"))
    await asyncio.to_thread(first, lambda row: row["pid"] not in (None, old["pid"]) and row["state"] == "starting")
    assert not restart.done()
    await asyncio.to_thread(gate.write_text, "go")
    answer = await restart
    assert (answer.code, "a is ready again" in answer.out) == (0, True), answer.err
    assert (await asyncio.to_thread(control.request, tmp_path, "status", timeout=20))["processes"][0]["ready"]
    await asyncio.to_thread(control.request, tmp_path, "stop", timeout=20)
    await server


async def test_control_socket_answers_status_kill_restart_and_stop(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90) / ("e" * 90)  # longer than an AF_UNIX address may be
    deep.mkdir(parents=True)
    spec = SupervisorSpec(state_dir=str(deep), processes=(python("a", GENTLE),), restart=FAST)
    with pytest.raises(control.NotRunning):
        control.request(deep, "status")
    started = asyncio.Event()
    server = asyncio.create_task(serve(spec, on_listening=started.set))
    await started.wait()

    async def ask(operation: str, **fields: Any) -> dict[str, Any]:
        return await asyncio.to_thread(control.request, deep, operation, timeout=20, **fields)

    def wait_up() -> dict[str, Any]:
        return next(s for s in control.stream(deep, "watch", timeout=20) if s["state"] == "up")

    status = await asyncio.to_thread(wait_up)
    assert [p["name"] for p in status["processes"]] == ["a"]
    assert (deep / control.SOCKET).stat().st_mode & 0o777 == 0o600
    with pytest.raises(control.CommandError, match=r"no process 'b'; there are a$"):
        await ask("restart", name="b")
    with pytest.raises(control.CommandError, match="unknown operation"):
        await ask("dance")
    await ask("kill", name="a", signal="KILL")

    def wait_back() -> dict[str, Any]:
        answers = control.stream(deep, "watch", timeout=20)
        return next(p for s in answers for p in s["processes"] if p["restarts"] == 1 and p["ready"])

    assert (await asyncio.to_thread(wait_back))["last_exit"] == -signal.SIGKILL
    assert (await ask("stop"))["state"] == "stopped"
    assert await server is True
    assert not (deep / control.SOCKET).exists()


async def test_nothing_survives_a_killed_supervisor(tmp_path: Path) -> None:
    spec = SupervisorSpec(state_dir=str(tmp_path), processes=(python("a", GENTLE), python("b", STUBBORN)))
    (tmp_path / "spec.json").write_bytes(dump(spec))
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "libs.supervisor",
        str(tmp_path / "spec.json"),
        "--echo",
        stdout=asyncio.subprocess.PIPE,
    )
    if supervisor.stdout is None:
        raise RuntimeError("the supervisor has no output")
    up = 0
    async with asyncio.timeout(20):
        async for line in supervisor.stdout:
            up += line.endswith(b" up\n")
            if up == 2:
                break
    pids = [p["pid"] for p in control.request(tmp_path, "status")["processes"]]
    descriptors = [os.pidfd_open(pid) for pid in pids]
    supervisor.kill()
    await supervisor.wait()
    for descriptor in descriptors:
        await end_of(descriptor)


async def test_children_start_cleanly_beside_busy_grpc_threads(tmp_path: Path) -> None:
    """A fork of a process with gRPC threads kills the child now and then; twenty starts would show it."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        sink = WaitingSink(tmp_path)
        names = [f"p{number}" for number in range(20)]
        async with running(tmp_path, *(python(name, GENTLE) for name in names), sink=sink) as supervisor:
            for name in names:
                await sink.has(name, "up")
            processes = supervisor.status()["processes"]
    await server.stop(None)
    assert [process["last_exit"] for process in processes] == [None] * 20


async def test_f7_a_process_that_hangs_is_started_anew(tmp_path: Path) -> None:
    port = free_port()
    still = python("still", LISTEN, str(port), "200", readiness=HttpProbe(port=port), stop_grace=0.05)
    async with running(tmp_path, still, liveness=IMPATIENT) as supervisor:
        old = (await until_state(supervisor, "up"))["processes"][0]["pid"]
        supervisor.kill("still", signal.SIGSTOP)
        await until(supervisor, lambda p: p["still"]["state"] == "hung")
        status = await until(supervisor, lambda p: p["still"]["ready"])
    [process] = status["processes"]
    assert (process["restarts"], process["last_exit"]) == (1, -signal.SIGKILL)
    assert process["pid"] != old


ANSWERS = """
import socket, sys
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
for number in range(1_000_000):
    c, _ = s.accept()
    c.recv(1000)
    c.sendall(b"HTTP/1.1 %s x\\r\\n\\r\\n" % (b"503" if number else b"200"))
    c.close()
    print("answered", number, flush=True)
"""


async def test_f7_a_process_that_answers_that_it_is_not_ready_is_left_alone(tmp_path: Path) -> None:
    port, sink = free_port(), WaitingSink(tmp_path)
    waits = python("waits", ANSWERS, str(port), readiness=HttpProbe(port=port))
    async with running(tmp_path, waits, liveness=IMPATIENT, sink=sink) as supervisor:
        await until(supervisor, lambda p: p["waits"]["state"] == "unready")
        await sink.has("waits", "answered 20")
        [process] = supervisor.status()["processes"]
        assert (process["state"], process["restarts"]) == ("unready", 0)


LATE = """
import os, signal, socket, sys
port, marks = int(sys.argv[1]), sys.argv[2]
os.makedirs(marks, exist_ok=True)
runs = len(os.listdir(marks))
open(os.path.join(marks, str(runs)), "x").close()
if runs == 1:
    signal.pause()
s = socket.create_server(("127.0.0.1", port))
signal.pause()
"""


async def test_f7_a_process_that_hangs_in_a_start_after_the_first_is_started_anew(tmp_path: Path) -> None:
    port = free_port()
    marks, probe = str(tmp_path / "marks"), TcpProbe(port=port)
    late = python("late", LATE, str(port), marks, readiness=probe, ready_timeout=3.0, stop_grace=0.05)
    async with running(tmp_path, late, liveness=IMPATIENT) as supervisor:
        await until_state(supervisor, "up")
        supervisor.kill("late", signal.SIGKILL)
        status = await until(supervisor, lambda p: p["late"]["ready"] and p["late"]["restarts"] >= 2)
        assert status["state"] == "up"


async def test_f7_a_probe_that_cannot_look_ends_the_start_in_time_and_says_why(tmp_path: Path) -> None:
    missing = TlsFiles(*(str(tmp_path / name) for name in ("ca", "cert", "key")))
    port = free_port()
    blind = python("blind", LISTEN, str(port), "200", readiness=GrpcProbe(port=port, tls=missing), ready_timeout=3.0)
    async with running(tmp_path, blind) as supervisor:
        status = await until_state(supervisor, "failed")
    assert "cannot be observed" in status["failure"]["reason"]
    assert "FileNotFoundError" in status["failure"]["reason"]


async def test_f7_the_supervisor_outlives_a_full_disk(tmp_path: Path) -> None:
    for name in ("mesh", "talks", "supervisor"):
        log = log_path(tmp_path, name)
        log.parent.mkdir(exist_ok=True)
        log.symlink_to("/dev/full")
    sink = WaitingSink(tmp_path)
    async with running(tmp_path, python("talks", IDLE), sink=sink) as supervisor:
        await until_state(supervisor, "up")
        await sink.has("talks", "up")
        supervisor.kill("talks", signal.SIGKILL)
        await sink.has("talks", "up", times=2)
        status = await until(supervisor, lambda p: p["talks"]["ready"])
        assert status["log_lines_dropped"] >= 4
        log_path(tmp_path, "talks").unlink()
        supervisor.kill("talks", signal.SIGKILL)
        await sink.has("talks", "up", times=3)
    assert log_path(tmp_path, "talks").read_text() == "... 2 lines could not be written\nup\n"
