"""What the supervisor is told: processes, their order, how readiness is seen, and limits. JSON on disk."""

from __future__ import annotations

from pathlib import Path

import msgspec

from libs.config import TlsFiles
from libs.supervisor.policy import LivenessPolicy, RestartPolicy, StartupPolicy


class TcpProbe(msgspec.Struct, frozen=True, tag="tcp", forbid_unknown_fields=True):
    """Ready when the port accepts a connection."""

    port: int
    host: str = "127.0.0.1"


class HttpProbe(msgspec.Struct, frozen=True, tag="http", forbid_unknown_fields=True):
    """Ready when a GET is answered with status 200."""

    port: int
    path: str = "/"
    host: str = "127.0.0.1"


class GrpcProbe(msgspec.Struct, frozen=True, tag="grpc", forbid_unknown_fields=True):
    """Ready while the standard health service says SERVING (grpc.health.v1, `Watch`)."""

    port: int
    host: str = "127.0.0.1"
    tls: TlsFiles | None = None
    """Client certificate of the supervisor; None speaks plaintext."""
    server_name: str = ""
    """The name that the peer's certificate must carry, so that a stranger on the port is not taken for the service."""
    service: str = ""
    """The health service's key; empty asks for the whole server."""


class EtcdProbe(msgspec.Struct, frozen=True, tag="etcd", forbid_unknown_fields=True):
    """Ready while an etcd answers, and refuses whoever has no rights: before that nobody else may be let at it."""

    port: int
    tls: TlsFiles
    """A certificate that it lets connect and that has no rights, such as its own."""
    host: str = "127.0.0.1"


READY_TIMEOUT = 180.0
"""Seconds that a start may take where nothing else is said: a process that ends is known at once, and a machine that
others keep busy has been seen to need 70 for a worker with two models."""

Probe = TcpProbe | HttpProbe | GrpcProbe | EtcdProbe


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process to keep running."""

    name: str
    """Unique; prefix of its log lines and name of its log file."""
    argv: tuple[str, ...]
    """Program and arguments; no shell."""
    fork: bool = False
    """Whether its first start is a fork of the supervisor: see libs.supervisor.forks. `argv` is (the supervisor's own
    Python, "-m", a package whose `__main__` only imports when it is imported, …)."""
    env: dict[str, str] = {}
    """Added to the supervisor's own environment."""
    cwd: str = ""
    """Working directory; empty keeps the supervisor's."""
    after: tuple[str, ...] = ()
    """Starts once these are ready; stops before them."""
    uses: tuple[str, ...] = ()
    """Calls these while it runs: starts without waiting for them, but stops before them, so that it can drain."""
    readiness: Probe | None = None
    """None counts as ready as soon as it runs."""
    ready_timeout: float = READY_TIMEOUT
    """Seconds from its start to readiness before the start-up is given up. Later, seconds at least until
    a process that has not answered at all is started anew."""
    stop_grace: float = 12.0
    """Seconds between SIGTERM and SIGKILL."""
    before_restart: tuple[str, ...] = ()
    """A command that is run, for at most `stop_grace`, before the process is stopped because somebody asked for its
    restart: of a program that ends at once at SIGTERM, what lets its requests end first. When everything is stopped it
    is not: nobody is to be sent elsewhere then."""


class LogLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of the log files."""

    max_bytes: int = 8 * 2**20
    """A file that would grow past this is rotated."""
    backups: int = 2
    """Rotated files kept per log."""
    tail_lines: int = 30
    """Last lines per process kept in memory, shown when it dies at start."""


class SupervisorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything one supervisor runs."""

    state_dir: str
    """Holds `supervisor.sock` and `logs/`."""
    processes: tuple[ProcessSpec, ...]
    shared: tuple[str, ...] = ()
    """Modules that are imported once for all forks."""
    restart: RestartPolicy = RestartPolicy()
    startup: StartupPolicy = StartupPolicy()
    liveness: LivenessPolicy = LivenessPolicy()
    logs: LogLimits = LogLimits()


def load(path: Path | str) -> SupervisorSpec:
    """Reads a specification. Raises OSError, or msgspec.ValidationError / DecodeError for a bad file."""
    return msgspec.json.decode(Path(path).read_bytes(), type=SupervisorSpec)


def dump(spec: SupervisorSpec) -> bytes:
    """The specification as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(spec), indent=2)
