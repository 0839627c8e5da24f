"""The parent's half: start a process, learn how it ended, say it in words."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence


def spawn(module: str, end: socket.socket, *, also: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start `python -m module SOCKET PARENT [DESCRIPTOR…]` with its end of the socket pair, and `also` these.

    To be called on the loop's own thread, about a millisecond: Popen uses vfork, which spares a process full of gRPC's
    threads a fork, and the kernel's promise to kill the child with its parent is about the thread that started it.
    """
    descriptors = (end.fileno(), *also)
    arguments = (str(end.fileno()), str(os.getpid()), *map(str, also))
    return subprocess.Popen(  # noqa: S603 - our own argument list, no shell
        (sys.executable, "-P", "-m", module, *arguments),
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": module_path()},
        # Signals to the parent's group (Ctrl-C, a supervisor's SIGTERM) are the parent's to act on.
        start_new_session=True,
    )


def module_path() -> str:
    """`PYTHONPATH` of a child that shall find modules where this process finds them and, with `-P`, nowhere else: the
    folder where somebody stands may be a stranger's."""
    return os.pathsep.join(path for path in sys.path if path)


def exit_of(process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
    """The process's exit status, once it has ended."""
    exited: asyncio.Future[int] = loop.create_future()

    def settle(code: int) -> None:
        if not exited.done():
            exited.set_result(code)

    def wait() -> None:
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop closed without stopping the process
            loop.call_soon_threadsafe(settle, code)

    threading.Thread(target=wait, name="child.exit", daemon=True).start()
    return exited


def ended(code: int) -> str:
    """The exit status in words: "… ended with status 1", "… died of SIGSEGV"."""
    if code >= 0:
        return f"process ended with status {code}"
    try:
        return f"process died of {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"process died of signal {-code}"
