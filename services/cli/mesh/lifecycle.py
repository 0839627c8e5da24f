"""The supervisor process of a mesh: started detached, found again, stopped, waited for."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from libs.supervisor import control
from libs.supervisor.spec import SupervisorSpec, dump

STOP_SECONDS = 60.0
"""A stop that takes longer is ended by killing the supervisor, and the kernel then kills what it started."""


class StartError(Exception):
    """The mesh did not start; the message says why, `details` holds a service's last log lines."""

    def __init__(self, message: str, details: list[str] | None = None) -> None:
        super().__init__(message)
        self.details = details or []


class Busy(Exception):
    """Another process starts or runs the mesh in this state directory."""


class Lock:
    """Held by whoever starts a mesh and, through an inherited descriptor, by its supervisor for life.

    So the lock is free exactly when nothing runs, also after a crash of any of them.
    """

    def __init__(self, state: Path) -> None:
        """Raises Busy when it is taken."""
        self.descriptor = os.open(state / "supervisor.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.descriptor)
            raise Busy(f"the mesh in {state} is running or being started") from None

    def close(self) -> None:
        """Lets go; a supervisor that inherited the descriptor still holds the lock."""
        os.close(self.descriptor)


def launch(spec: SupervisorSpec, lock: Lock, *, without: Collection[str] = ()) -> None:
    """Starts the supervisor, detached, and returns once it takes commands. Raises StartError when it ends before.

    :param without: variables of this process's environment that nobody there shall see.
    """
    state = Path(spec.state_dir)
    path = state / "config" / "supervisor.json"
    path.write_bytes(dump(spec))
    (state / "logs").mkdir(mode=0o700, exist_ok=True)
    errors = state / "logs" / "supervisor.err"
    listening, tell = os.pipe()
    with open(errors, "wb") as output:
        subprocess.run(  # noqa: S603 - our own argument list, no shell
            [sys.executable, "-m", "libs.supervisor", str(path), "--detach", "--ready-fd", str(tell)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name not in without},
            pass_fds=(lock.descriptor, tell),
            check=False,
        )
    os.close(tell)
    with open(listening, "rb") as pipe:
        if not pipe.read(1):  # it ended before it listened
            raise StartError("the supervisor did not start", errors.read_text(errors="replace").splitlines()[-20:])


def clear(state: Path, *, seconds: float = STOP_SECONDS) -> None:
    """Stops whatever was started and waits until the lock is free.

    Asked again and again, because a supervisor that was launched a moment ago may not listen yet, and one that has
    given its last answer may not have ended yet.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        stop(state)
        try:
            Lock(state).close()
        except Busy:
            time.sleep(0.02)
        else:
            return


def status(state: Path) -> dict[str, Any] | None:
    """What the supervisor says; None when none runs."""
    try:
        return control.request(state, "status", timeout=10)
    except control.NotRunning:
        return None


def watch(state: Path) -> Iterator[dict[str, Any]]:
    """A status now and per change, until the mesh is stopped or its start failed."""
    return control.stream(state, "watch")


def stop(state: Path) -> bool:
    """Stops the mesh and waits until every process is gone. False when none runs."""
    before = status(state)
    if before is None:
        return False
    try:
        supervisor = os.pidfd_open(before["pid"])
    except ProcessLookupError:
        return True
    try:
        try:
            control.request(state, "stop", timeout=STOP_SECONDS)
        except (TimeoutError, control.NotRunning):
            _kill(supervisor)
        if not _wait(supervisor, STOP_SECONDS):
            _kill(supervisor)
            _wait(supervisor, STOP_SECONDS)
    finally:
        os.close(supervisor)
    return True


def _kill(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return


def _wait(pidfd: int, seconds: float) -> bool:
    """Whether the process ended in time."""
    return bool(select.select([pidfd], [], [], seconds)[0])
