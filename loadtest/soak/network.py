"""A network of one's own, in which two processes can be cut off from each other without root.

`unshare` gives the soak, and every process that it starts, a user, mount and network namespace of its own. In it, a
partition is a pair of routing rules per TCP connection between two processes: their packets vanish, nobody is told, and
both ends go on when the rules are gone. Connections that are opened meanwhile are found within `LOOK_SECONDS`.

A slow process is one whose ports' packets, both ways, are routed into a TUN device and come back out of it later; a
broken connection is one that the kernel aborts at both ends.
Sources: ip-rule(8), `ipproto`, `sport`, `dport`, `blackhole`, `iif`; Linux, networking/tuntap; ss(8), `-K`.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psutil

LOOK_SECONDS = 0.1
_INSIDE = "WEIR_SOAK_INSIDE"
_IP = shutil.which("ip") or "/sbin/ip"
_SS = shutil.which("ss") or "/usr/bin/ss"
_TUN = Path("/dev/net/tun")
_DEVICE, _TABLE = "slow0", "77"
_SET_INTERFACE, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_LARGEST = 65_521
"""Bytes of a packet: as on loopback, or connections would have to learn of a smaller one."""


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


@contextmanager
def slowed(pid: int, delay: float) -> Iterator[None]:
    """While the block runs, every packet to and from the ports on which a process listens comes `delay` seconds later.

    :raises OSError: there is no TUN device to be had.
    """
    rules = [(way, str(port)) for port in _listening(pid) for way in ("sport", "dport")]
    with ExitStack() as stack:
        stack.enter_context(closing(_Detour(delay)))
        for way, port in rules:
            # Only what a process has sent: what comes back out of the detour goes where it was to go.
            words = ("pref", "20", "iif", "lo", "ipproto", "tcp", way, port, "lookup", _TABLE)
            _run("rule", "add", *words)
            stack.callback(_run, "rule", "del", *words)  # before the device goes, which waits for what is under way
        yield


class _Detour:
    """A device that gives back each packet when `delay` seconds are over."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._file = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self._file, _SET_INTERFACE, struct.pack("16sH", _DEVICE.encode(), _TUN_WITHOUT_HEADER))
        _run("link", "set", _DEVICE, "mtu", str(_LARGEST), "up")
        for name, value in {"route_localnet": 1, "accept_local": 1, "rp_filter": 0}.items():
            Path(f"/proc/sys/net/ipv4/conf/{_DEVICE}/{name}").write_text(f"{value}\n", encoding="ascii")
        Path("/proc/sys/net/ipv4/conf/all/rp_filter").write_text("0\n", encoding="ascii")
        _run("route", "add", "default", "dev", _DEVICE, "table", _TABLE)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._pump, name="detour", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The device goes when what is under way has come; nothing may be sent its way any more."""
        self._over.set()
        self._thread.join()
        os.close(self._file)

    def _pump(self) -> None:
        under_way: deque[tuple[float, bytes]] = deque()
        while under_way or not self._over.is_set():
            wait = min(LOOK_SECONDS, max(0.0, under_way[0][0] - time.monotonic())) if under_way else LOOK_SECONDS
            if select.select([self._file], (), (), wait)[0]:
                with suppress(BlockingIOError):
                    under_way.append((time.monotonic() + self._delay, os.read(self._file, _LARGEST)))
            while under_way and under_way[0][0] <= time.monotonic():
                os.write(self._file, under_way.popleft()[1])


def break_one(pid: int) -> bool:
    """Aborts one of the connections that a process took, at both ends; whether there was one."""
    taken = [each for each in _connections(pid) if each[0] in _listening(pid)]
    if not taken:
        return False
    near, far = random.choice(taken)
    for one, other in ((near, far), (far, near)):
        words = ("-K", "-t", "state", "established", "sport", "=", f":{one}", "dport", "=", f":{other}")
        subprocess.run([_SS, *words], capture_output=True, check=False)
    return True


def cannot_slow() -> str:
    """Why no process can be slowed down here; empty where one can."""
    return "" if os.access(_TUN, os.R_OK | os.W_OK) else f"{_TUN} is not to be had"


def _listening(pid: int) -> set[int]:
    with suppress(psutil.Error):
        found = psutil.Process(pid).net_connections(kind="tcp")
        return {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}
    return set()


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
