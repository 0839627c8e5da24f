"""Does faults to the processes of a running mesh, and undoes them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from libs.supervisor import control
from loadtest.soak import network
from loadtest.soak.book import Resident
from loadtest.soak.faults import BREAK, FREEZE, FULL, KILL, PART, SKEW, SLOW, SLOW_DISK, Fault
from services.cli.mesh import lifecycle
from tests.support.mesh import eventually

DISK = "256m"
"""The size of a disk that may be full; etcd alone wants 128 MB of it before it writes anything."""
_BACK = 90.0
_LOOK = 0.1
_BALLAST = ".ballast"
_BREAKS = 0.5
"""Seconds between two connections that are broken."""


class Injector:
    """Faults for one mesh, whose processes the supervisor of `state` runs."""

    def __init__(self, state: Path, clocks: Path) -> None:
        self._state, self._clocks = state, clocks
        self._do: Mapping[str, Callable[[Fault], None]] = {
            KILL: self._kill,
            FREEZE: self._freeze,
            PART: self._part,
            FULL: self._fill,
            SKEW: self._skew,
            SLOW: self._slow,
            BREAK: self._break,
            SLOW_DISK: self._slow_disk,
        }

    def kinds(self) -> dict[str, str]:
        """What can be done here: by kind, why it cannot, empty where it can."""
        alone = "" if network.inside() else "no namespaces to be had: unshare -Urmn is refused"
        slow = alone or network.cannot_slow()
        return {**dict.fromkeys(self._do, ""), PART: alone, FULL: alone, BREAK: alone, SLOW: slow}

    def inflict(self, fault: Fault) -> None:
        """Does it, and returns when it is over; the mesh may not be ready again then.

        :raises LookupError: a target does not run.
        """
        self._do[fault.kind](fault)

    def restart(self, name: str) -> None:
        """One process, as an operator restarts it; returns when another runs in its place.

        :raises LookupError: it does not run.
        """
        old = self._pid(name)
        control.request(self._state, "restart", timeout=_BACK, name=name)
        eventually(lambda: self._changed(name, old), seconds=_BACK, what="another process")

    def reclaim(self, name: str, notice: float) -> float:
        """A machine is taken away: SIGTERM now, SIGKILL after `notice` seconds. Returns when the process was gone,
        seconds after the notice.

        :raises LookupError: it does not run.
        """
        process = psutil.Process(self._pid(name))
        began = time.monotonic()
        process.terminate()
        try:
            process.wait(notice)
        except psutil.TimeoutExpired:
            process.kill()
        return time.monotonic() - began

    def hold_down(self, names: Collection[str], seconds: float) -> None:
        """These are killed at once, and again as soon as they come back, for so long: a zone that is gone."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for row in self._processes():
                if row["name"] in names and row["pid"]:
                    with suppress(ProcessLookupError):
                        os.kill(row["pid"], signal.SIGKILL)
            time.sleep(_LOOK)

    def names(self) -> list[str]:
        """Every process."""
        return [str(row["name"]) for row in self._processes()]

    def zone(self, name: str) -> str:
        """Where a process stands."""
        services = json.loads((self._state / "mesh.json").read_text())["services"]
        return str(services[name]["zone"])

    def ready(self) -> bool:
        """Whether every process is."""
        return all(row["ready"] for row in self._processes())

    def wait_ready(self) -> float:
        """Until every process is ready; the seconds that it took.

        :raises TimeoutError: one is not.
        """
        began = time.monotonic()
        eventually(self.ready, seconds=_BACK, what="every process being ready")
        return time.monotonic() - began

    def resident(self) -> list[Resident]:
        """The memory of every process, as it is."""
        found = []
        for row in self._processes():
            with suppress(psutil.Error, TypeError):  # it does not run
                process = psutil.Process(row["pid"])
                age = time.time() - process.create_time()
                found.append(Resident(str(row["name"]), process.pid, age, process.memory_info().rss))
        return found

    def _processes(self) -> list[dict[str, Any]]:
        status = lifecycle.status(self._state)
        return list(status["processes"]) if status else []

    def _pid(self, name: str) -> int:
        pid = next((row["pid"] for row in self._processes() if row["name"] == name), None)
        if not pid:
            raise LookupError(f"{name} does not run")
        return int(pid)

    def _kill(self, fault: Fault) -> None:
        old = self._pid(fault.targets[0])
        os.kill(old, signal.SIGKILL)
        # The supervisor may not have seen it yet, and still call it ready.
        eventually(lambda: self._changed(fault.targets[0], old), seconds=_BACK, what="another process")

    def _changed(self, name: str, old: int) -> bool:
        return any(row["name"] == name and row["pid"] not in (None, old) for row in self._processes())

    def _freeze(self, fault: Fault) -> None:
        pid = self._pid(fault.targets[0])
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(fault.seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    def _part(self, fault: Fault) -> None:
        with network.parted(*map(self._pid, fault.targets)) as parting:
            parting.last(fault.seconds)

    def _fill(self, fault: Fault) -> None:
        with filled(self._state / "data" / fault.targets[0]):
            time.sleep(fault.seconds)

    def _skew(self, fault: Fault) -> None:
        self._tell(fault, f"{fault.skew}", "")

    def _slow_disk(self, fault: Fault) -> None:
        self._tell(fault, f"{fault.delay}", ".disk")

    def _tell(self, fault: Fault, value: str, kind: str) -> None:
        """What the process reads of itself (clocks/sitecustomize.py), while the fault lasts."""
        told = self._clocks / f"{self._pid(fault.targets[0])}{kind}"
        try:
            told.write_text(f"{value}\n", encoding="ascii")
            time.sleep(fault.seconds)
        finally:
            told.unlink(missing_ok=True)

    def _slow(self, fault: Fault) -> None:
        with network.slowed(self._pid(fault.targets[0]), fault.delay):
            time.sleep(fault.seconds)

    def _break(self, fault: Fault) -> None:
        end = time.monotonic() + fault.seconds
        while time.monotonic() < end:
            network.break_one(self._pid(fault.targets[0]))
            time.sleep(_BREAKS)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """While the block runs there is no byte left on a folder's disk."""
    ballast = folder / _BALLAST
    try:
        with ballast.open("wb") as file:
            _write_all_there_is(file.fileno())
            yield
    finally:
        ballast.unlink(missing_ok=True)


def _write_all_there_is(descriptor: int) -> None:
    """Until the disk is full to the last byte."""
    size = 1 << 20
    while size:
        try:
            os.write(descriptor, bytes(size))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            size //= 2


@contextmanager
def disks(state: Path, names: list[str]) -> Iterator[None]:
    """A disk of its own for each process's data, while the block runs, where there are namespaces for it."""
    folders = [state / "data" / name for name in names] if network.inside() else []
    for folder in folders:
        folder.mkdir(parents=True, mode=0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0700", "none", str(folder)], check=True)  # noqa: S607
    try:
        yield
    finally:
        for folder in folders:
            with suppress(OSError):
                subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)  # noqa: S607
