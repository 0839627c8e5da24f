"""What a mesh's processes have used: CPU and memory, by name, from the operating system; and what they count."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds (user + system, since its start) and resident bytes, by process name."""

    cpu: Mapping[str, float]
    rss: Mapping[str, int]
    own: float = 0.0
    """CPU seconds of this process, the load generator."""
    machine: float = 0.0
    """CPU seconds of everything on this machine."""

    def since(self, before: Used) -> dict[str, float]:
        """CPU seconds used since then, by process."""
        return {name: self.cpu[name] - before.cpu[name] for name in self.cpu}

    def strangers_since(self, before: Used) -> float:
        """CPU seconds that neither the mesh nor the load generator used since then."""
        known = sum(self.since(before).values()) + self.own - before.own
        return max(0.0, self.machine - before.machine - known)


def read(pids: Mapping[str, int]) -> Used:
    """Read the counters of these processes.

    None of the mesh's processes has children of its own; a mesh that grows them is found out by `check_no_children`.

    :raises ProcessLookupError: one of them is gone.
    """
    return Used(
        {name: cpu_seconds(pid) for name, pid in pids.items()},
        {name: resident_bytes(pid) for name, pid in pids.items()},
        time.process_time(),
        machine_cpu_seconds(),
    )


def cpu_seconds(pid: int) -> float:
    """User and system CPU of a process, its ended threads included, to the nanosecond.

    The process's CPU clock (clock_getcpuclockid(3)); /proc/PID/stat counts in ticks of 10 ms, which is more than some
    services use in a window.

    :raises ProcessLookupError: there is no such process.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel
    except OSError as error:
        raise ProcessLookupError(f"process {pid} is gone") from error


def machine_cpu_seconds() -> float:
    """CPU seconds that the machine was busy since its start, to 10 ms; time stolen by its host included."""
    with open("/proc/stat", "rb") as file:
        user, nice, system, _, _, irq, softirq, steal = (int(field) for field in file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Resident memory of a process.

    :raises ProcessLookupError: there is no such process.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {pid} is gone") from error


def proportional_bytes(pid: int) -> int:
    """Memory of a process in which a page that several have counts as a part for each: over all of them, once.

    :raises ProcessLookupError: there is no such process.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(b"Pss:")) * 1024
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {pid} is gone") from error


_PREDICTOR = "predictor"


def check_no_children(pids: Mapping[str, int]) -> None:
    """Nothing that the mesh runs may escape the accounting, but for what predictors start: it comes and goes, also
    between two looks, and idles where this is asked, in benches of streams.

    :raises RuntimeError: a process has children that are none of these.
    """
    known = set(pids.values())
    for name, pid in pids.items():
        if name.startswith(_PREDICTOR):
            continue
        strange = [child.pid for child in psutil.Process(pid).children() if child.pid not in known]
        if strange:
            raise RuntimeError(f"{name} has processes that are not accounted for: {strange}")


async def scrape(address: str) -> dict[str, float]:
    """The samples of a Prometheus endpoint "host:port", by name with labels as written."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        answer = await reader.read()
    finally:
        writer.close()
    return samples(answer.partition(b"\r\n\r\n")[2].decode())


def samples(text: str) -> dict[str, float]:
    """Prometheus text format to values by name with labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found
