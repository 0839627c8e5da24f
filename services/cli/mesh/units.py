"""What a mesh consists of once its topology is planned: one process after the other, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.authority.identity import Identity
from libs.config import ENDING_SECONDS, TlsFiles
from libs.supervisor.spec import READY_TIMEOUT, Probe, ProcessSpec
from services.cli.mesh.topology import Process

DRAIN = 10.0
"""`ServiceSettings.drain_seconds`, unless told otherwise."""
ENDING = ENDING_SECONDS + 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One process of the mesh, wherever it runs. Paths and addresses are as it sees them."""

    name: str
    process: Process
    """As in the topology."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of a service: its configuration file."""
    files: Mapping[Path, str]
    """Content by path; nothing secret."""
    ports: Mapping[str, int]
    """By what they are for: "grpc", "metrics" and so on."""
    identity: Identity | None
    """None: it calls nobody who asks who it is, and has no certificate."""
    tls: TlsFiles | None
    """Its certificate."""
    secrets: Mapping[str, Path] = field(default_factory=dict)
    """The secrets that it reads."""
    blobs: bool = False
    """Whether it reads the blob store of model files."""
    readiness: Probe
    ready_timeout: float = READY_TIMEOUT
    stop_grace: float = DRAIN + ENDING
    """Seconds from SIGTERM after which it may be killed."""
    before_restart: tuple[str, ...] = ()
    """See libs.supervisor.spec.ProcessSpec; containers have hooks of their own."""
    cwd: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `weir up` writes and starts."""

    processes: tuple[ProcessSpec, ...]
    files: Mapping[Path, str]
    """Content by path."""
    folders: tuple[Path, ...]
    """Folders to create, mode 0700."""
    ports: Mapping[int, str]
    """Who wants which port."""
    addresses: Mapping[str, Mapping[str, Any]]
    """Per process: service, zone, address, metrics."""
    units: tuple[Unit, ...]

    @property
    def identities(self) -> tuple[Identity, ...]:
        """Whose certificates the processes show."""
        return tuple(unit.identity for unit in self.units if unit.identity)

    def all(self, service: str) -> list[str]:
        """The addresses of a service's processes."""
        return [str(each["address"]) for each in self.addresses.values() if each["service"] == service]
