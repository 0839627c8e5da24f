"""What a mesh's processes have used: CPU and memory, by name, from the operating system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds (user + system, children that have ended included) and resident bytes, by process name."""

    cpu: Mapping[str, float]
    rss: Mapping[str, int]

    def since(self, before: Used) -> dict[str, float]:
        """CPU seconds used since then, by process."""
        return {name: self.cpu[name] - before.cpu.get(name, 0.0) for name in self.cpu}


def read(pids: Mapping[str, int]) -> Used:
    """Read the counters of these processes and of their children."""
    cpu: dict[str, float] = {}
    rss: dict[str, int] = {}
    for name, pid in pids.items():
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        times = [member.cpu_times() for member in family]
        cpu[name] = sum(t.user + t.system for t in times)
        rss[name] = sum(member.memory_info().rss for member in family)
    return Used(cpu, rss)
