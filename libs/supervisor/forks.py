"""The first start of Python processes, as forks of the supervisor: they share what it has imported, in time and memory.

They are made before the supervisor has a thread or an event loop. Each imports at once what else it needs, while others
are waited for, and then waits to be let go. A process that is started again, after an exit say, is a fresh Python and
inherits nothing.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from libs.supervisor.leash import PR_SET_PDEATHSIG
from libs.supervisor.spec import ProcessSpec, SupervisorSpec

_ARGUMENTS = 45
"""Where /proc/PID/stat says, behind the name, where the arguments begin; where they end comes next."""
_KEPT = 3
"""Descriptors that a fork keeps, from 0 on; the next one is its gate."""


class Fork:
    """A process that waits to be let go."""

    def __init__(self, pid: int, gate: int, output: int) -> None:
        self.pid = pid
        self.output = output
        """The descriptor that its output is read from."""
        self._gate = gate

    def let_go(self) -> None:
        """Its start; nothing where it has ended already."""
        try:
            os.write(self._gate, b".")
        except BrokenPipeError:
            pass
        finally:
            os.close(self._gate)

    def wait(self) -> int:
        """Waits for its end. Returns the exit code, negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def discard(self) -> None:
        """Ends one that is not wanted any more and was never let go."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()
        os.close(self._gate)
        os.close(self.output)


def fork_all(spec: SupervisorSpec) -> dict[str, Fork]:
    """A fork per process that says so, by name. To be called by a process of one thread, once."""
    wanted = [process for process in spec.processes if process.fork]
    if not wanted:
        return {}
    for module in spec.shared:
        import_module(module)
    gc.collect()
    gc.freeze()  # or the first collection in each fork would write to, and so copy, all that they share
    return {process.name: _fork(process) for process in wanted}


def _fork(process: ProcessSpec) -> Fork:
    (waits, gate), (output, writes) = os.pipe(), os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _become(process, waits, writes, parent)
    os.close(waits)
    os.close(writes)
    return Fork(pid, gate, output)


def _become(process: ProcessSpec, gate: int, output: int, parent: int) -> NoReturn:
    """As libs.supervisor.leash and a fresh Python would: nothing of the supervisor's is left open or in the way."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before it could be watched
        os._exit(1)
    _take((os.open(os.devnull, os.O_RDONLY), output, output, gate))
    os.environ.update(process.env)
    if process.cwd:
        os.chdir(process.cwd)
    _, _, module, *arguments = process.argv
    sys.path[0] = os.getcwd()
    sys.argv = [module, *arguments]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    _show(process.argv)
    main = f"{module}.__main__"
    import_module(main)  # which does nothing but import: it is not called so
    del sys.modules[main]
    if not os.read(_KEPT, 1):
        os._exit(0)
    os.close(_KEPT)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit(0)


def _take(descriptors: Sequence[int]) -> None:
    """Makes these the descriptors from 0 on, and closes all others."""
    # Copied to above these first: none is overwritten before it is in its place.
    held = [fcntl.fcntl(each, fcntl.F_DUPFD, len(descriptors)) for each in descriptors]
    for number, each in enumerate(held):
        os.dup2(each, number)
    os.closerange(len(held), max(map(int, os.listdir("/proc/self/fd"))) + 1)


def _show(argv: Sequence[str]) -> None:
    """Lets `ps` show this command line, as far as the supervisor's own left room for it."""
    said = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = map(int, said[_ARGUMENTS : _ARGUMENTS + 2])
    line = b"\0".join(map(os.fsencode, argv))[: end - start - 1]
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)
