"""Configuration: one frozen struct per service, read once, at start.

A service's `config.py` subclasses `ServiceSettings`; `load` fills it from `--config FILE` (JSON), above it from
environment variables, above these from the command line, by one convention (libs.config.convention, README.md). Unknown
keys are refused with their name, wrong types with their path. Nothing else in a service reads files or the environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from libs.config.addresses import host_of, own_host
from libs.config.convention import CommandLineError, ConfigError, from_environment, from_file, from_flags, lay

__all__ = [
    "AUTO",
    "ENDING_SECONDS",
    "MAX_BODY_BYTES",
    "MAX_PREDICTION_BYTES",
    "CommandLineError",
    "ConfigError",
    "ServiceSettings",
    "TlsFiles",
    "load",
]

AUTO = "auto"
"""What `advertise` says where the process shall find out."""

MAX_BODY_BYTES = 1 << 20
"""Largest request that the mesh takes from its callers, over HTTP and gRPC alike, unless told otherwise."""
MAX_PREDICTION_BYTES = 16 << 20
"""The same of predictions, whose tensors are larger than texts, and of their answers."""
ENDING_SECONDS = 4.0
"""What the end of a process takes at most beside its `drain_seconds`; then it is cut."""
_LOG_LEVELS = ("debug", "info", "warning", "error")


class TlsFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Paths of PEM files: the CA that peers are checked against, this process's certificate and its key."""

    ca: str
    cert: str
    key: str


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every service needs."""

    service: str
    """The service's name, as in its SPIFFE id: "edge-auth", "gateway" …"""
    instance: str
    """This process's name, unique in the mesh: "gateway-0"."""
    zone: str = "zone-a"
    """The failure domain it runs in."""
    host: str = "127.0.0.1"
    """The address it listens on; "0.0.0.0" or "::" for all."""
    region: str = ""
    """The jurisdiction that its machine stands in, as its certificate says: what tenants' `allowed_regions` are
    compared with. Empty in a mesh whose tenants may be served anywhere."""
    advertise: str = ""
    """The IP under which others reach it, and which it registers; empty: `host`; "auto": that of the interface that
    leads to etcd or, where that cannot be told, to the default route."""
    port: int = 0
    """Its gRPC port; 0 takes a free one."""
    metrics_port: int = 0
    """Its Prometheus port (HTTP, /metrics); 0 turns it off."""
    metrics_host: str = "127.0.0.1"
    """The address of that port. It asks nobody who he is, so whatever reaches it reads it."""
    max_message_bytes: int = 16 * 2**20
    """Largest gRPC message that it takes; larger ones are RESOURCE_EXHAUSTED."""
    tls: TlsFiles | None = None
    """mTLS files; None serves plaintext (tests only)."""
    etcd: tuple[str, ...] = ()
    """etcd endpoints, "host:port"; the same TLS files are used. Empty runs without a registry (tests only)."""
    xds: tuple[str, ...] = ()
    """Control planes, "host:port", in the order in which they are tried: they say where "xds:///" names lead. The same
    TLS files are used. Empty leaves gRPC to the bootstrap that its own variables name."""
    registry: str = ""
    """Where the registry service is followed, a gRPC target; empty follows etcd itself (tests only, but for services
    that write to it: registry, rollout, controlplane)."""
    state_dir: str = ""
    """A directory of its own for caches and journals; empty keeps nothing."""
    log_level: str = "info"
    """"debug", "info", "warning" or "error"."""
    trace_endpoint: str = ""
    """OTLP gRPC endpoint, "host:port"; empty exports nothing."""
    trace_sample_ratio: float = 1.0
    """Share of requests without a sampling decision of their own that are traced."""
    drain_seconds: float = 10.0
    """How long SIGTERM waits for running work. The process has ended `ENDING_SECONDS` later."""

    def __post_init__(self) -> None:
        """Check what a type cannot say; `load` adds the source to the message."""
        for name in ("port", "metrics_port"):
            if not 0 <= getattr(self, name) <= 65_535:
                raise ValueError(f"{name} must be 0 to 65535")
        if (self.etcd or self.advertise) and self.advertise != AUTO:
            try:
                host_of(self.advertised)
            except ValueError as error:
                raise ValueError(f"advertise: it registers an IP address, and {error}") from error
        if self.log_level not in _LOG_LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(_LOG_LEVELS)}")
        if not 0 <= self.trace_sample_ratio <= 1:
            raise ValueError("trace_sample_ratio must be 0 to 1")
        if not self.drain_seconds >= 0:
            raise ValueError("drain_seconds must not be negative")

    @property
    def advertised(self) -> str:
        """The host that it registers."""
        return self.advertise or self.host


S = TypeVar("S", bound=ServiceSettings)


def load(cls: type[S], argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> S:
    """Read the settings of this process.

    :raises ConfigError: a file is missing or not JSON, a key is unknown or a value has the wrong type.
    :raises OSError: `advertise` is "auto" and no interface leads anywhere.
    :raises SystemExit: help was asked for, and printed.
    """
    file, flags = from_flags(cls, sys.argv[1:] if argv is None else argv)
    values: dict[str, Any] = from_file(file) if file is not None else {}
    lay(values, from_environment(cls, os.environ if environ is None else environ))
    lay(values, flags)
    try:
        settings = msgspec.convert(values, cls)
        if settings.advertise != AUTO:
            return settings
        return msgspec.structs.replace(settings, advertise=own_host(settings.etcd))
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{file or 'environment'}: {error}") from error
