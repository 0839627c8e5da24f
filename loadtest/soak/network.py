"""A network of one's own, in which two processes can be cut off from each other without root.

`unshare` gives the soak, and every process that it starts, a user, mount and network namespace of its own. In it, a
partition is a pair of routing rules per TCP connection between two processes: their packets vanish, nobody is told, and
both ends go on when the rules are gone. Connections that are opened meanwhile are found within `LOOK_SECONDS`.
Source: ip-rule(8), `ipproto`, `sport`, `dport`, `blackhole`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

LOOK_SECONDS = 0.1
_INSIDE = "WEIR_SOAK_INSIDE"
_IP = shutil.which("ip") or "/sbin/ip"


def move_inside(arguments: list[str]) -> None:
    """Starts this program anew in namespaces of its own; returns where it is already, or where there are none to be
    had."""
    if os.environ.get(_INSIDE) or not _possible():
        return
    os.environ[_INSIDE] = "1"
    os.execvp("unshare", ["unshare", "-Urmn", sys.executable, "-m", *arguments])  # noqa: S606, S607


def inside() -> bool:
    """Whether the network is our own."""
    return bool(os.environ.get(_INSIDE))


def prepare() -> None:
    """Brings loopback up, and lets rules come before the one that delivers everything local.

    :raises CalledProcessError: the kernel does not let us.
    """
    _run("link", "set", "lo", "up")
    _run("rule", "add", "pref", "100", "lookup", "local")
    _run("rule", "del", "pref", "0", "lookup", "local")


@contextmanager
def parted(one: int, other: int) -> Iterator[Parting]:
    """While the block runs nothing passes between two processes, by pid; `look` must be called now and then."""
    parting = Parting(one, other)
    try:
        yield parting
    finally:
        parting.heal()


@contextmanager
def closed(port: int) -> Iterator[None]:
    """While the block runs nothing reaches a port: what is sent to it vanishes, of whatever connection."""
    what = ("pref", "10", "ipproto", "tcp", "dport", str(port), "blackhole")
    _run("rule", "add", *what)
    try:
        yield
    finally:
        _run("rule", "del", *what)


class Parting:
    """The rules of one partition."""

    def __init__(self, one: int, other: int) -> None:
        self._pids = (one, other)
        self._cut: set[tuple[int, int]] = set()

    def look(self) -> None:
        """Cuts what has been opened since."""
        mine, theirs = (_connections(pid) for pid in self._pids)
        # Each end of a connection between the two is the other's, turned round.
        for ports in mine & {(far, near) for near, far in theirs}:
            if ports not in self._cut:
                self._cut.add(ports)
                for near, far in (ports, ports[::-1]):
                    _rule("add", near, far)

    def last(self, seconds: float) -> None:
        """Stays for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(LOOK_SECONDS)

    def heal(self) -> None:
        """Everything passes again."""
        for ports in self._cut:
            for near, far in (ports, ports[::-1]):
                _rule("del", near, far)
        self._cut.clear()


def _connections(pid: int) -> set[tuple[int, int]]:
    with suppress(psutil.Error):
        found = psutil.Process(pid).net_connections(kind="tcp")
        return {(each.laddr.port, each.raddr.port) for each in found if each.raddr}
    return set()


def _rule(what: str, near: int, far: int) -> None:
    _run("rule", what, "pref", "10", "ipproto", "tcp", "sport", str(near), "dport", str(far), "blackhole")


def _possible() -> bool:
    trial = "ip link set lo up && ip rule add pref 10 ipproto tcp sport 1 dport 2 blackhole && mount -t tmpfs none /mnt"
    with suppress(OSError):
        return subprocess.run(["unshare", "-Urmn", "sh", "-c", trial], capture_output=True, check=False).returncode == 0  # noqa: S607
    return False


def _run(*words: str) -> None:
    subprocess.run([_IP, *words], capture_output=True, check=True)
