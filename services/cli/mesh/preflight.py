"""What must be true before anything is started: programs, packages, models and ports are there."""

from __future__ import annotations

import errno
import importlib.util
import shutil
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

PACKAGES = ("aetcd", "grpc", "jinja2", "msgspec", "securesystemslib", "uvloop", "weir")
"""Imported by every profile; "weir" stands for the generated protos."""


class PreflightError(Exception):
    """Something needed is missing; one line per thing in the message."""


def check_packages(names: Iterable[str]) -> list[str]:
    """One line per package that cannot be imported."""
    return [
        f"the Python package {name!r} is not installed: run `make setup`"
        for name in names
        if importlib.util.find_spec(name) is None
    ]


def check_programs(programs: Mapping[str, str], fetch: str = "make setup") -> list[str]:
    """One line per program, given as path by name, that is not there; with the command that fetches it."""
    return [
        f"the program {name} is not at {path}: run `{fetch.replace('PROGRAM', name)}`"
        for name, path in programs.items()
        if not Path(path).is_file()
    ]


def check_interpreters(interpreters: Mapping[str, str]) -> list[str]:
    """One line per interpreter, given as path by the process that a profile wants it for, that is not there."""
    return [
        f"the Python of {name} is not at {path}: see the profile's file in deploy/profiles"
        for name, path in interpreters.items()
        if shutil.which(path) is None
    ]


def check_ports(ports: Mapping[int, str], *, host: str = "127.0.0.1") -> list[str]:
    """One line per taken port: which, who wants it, who has it as far as the system tells."""
    return [
        f"port {port}, which {name} needs, is taken{_holder(port)}"
        for port, name in sorted(ports.items())
        if not _is_free(host, port)
    ]


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        # With this, only a listening socket is in the way, not the remains of closed connections.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def _holder(port: int) -> str:
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return ""
    held = [each for each in connections if each.laddr and each.laddr.port == port and each.pid]
    # A listener first: only where there is none, an outgoing connection that happens to use the port.
    for connection in sorted(held, key=lambda each: each.status != psutil.CONN_LISTEN):
        try:
            return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
        except psutil.Error:
            return f" by pid {connection.pid}"
    return " (its owner is not visible to this user)"
