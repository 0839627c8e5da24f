"""What every process tells Prometheus of itself and of the machine that it is on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def watch_host(folder: str, ready: Callable[[], bool]) -> None:
    """Whether it is `ready`; the clock, which Prometheus can compare with its own; the room left for `folder`, when it
    is not empty."""
    from prometheus_client import Gauge

    Gauge("weir_ready", "1 while this process serves; 0: it runs and does not.").set_function(lambda: float(ready()))
    Gauge("weir_clock_seconds", "This process's clock at the scrape, seconds since the epoch.").set_function(time.time)
    if folder:
        free = Gauge("weir_disk_free_ratio", "Of the file system of this process's own folder, the free part, 0 to 1.")
        free.set_function(lambda: _free(folder))


def _free(folder: str) -> float:
    """1 where it cannot be read: that is no full disk, and whoever writes there complains."""
    try:
        seen = os.statvfs(folder)
    except OSError:
        return 1.0
    return seen.f_bavail / max(1, seen.f_blocks)
