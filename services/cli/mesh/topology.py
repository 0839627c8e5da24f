"""The topology file, profiles and overrides: data that says what a mesh consists of. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from itertools import count as count_from
from itertools import islice
from typing import Any

import msgspec

from libs.supervisor.spec import READY_TIMEOUT
from services.cli.mesh.monitoring import SERVICES as MONITORING

METRICS_OFFSET = 100
"""A service's metrics port is its port plus this."""
EVERY = "*"
"""The table of a profile that applies to every service."""
REPLICAS = "replicas"
"""The table of a profile that says how many processes of a service there are: `replicas.gateway = 4`."""
OPTIONAL = frozenset({"predictor", *MONITORING})
"""Services that a mesh can be without: zero processes of them."""
REPLICA_PORTS = range(60, METRICS_OFFSET)
"""Offsets for the ports of replicas that the topology file does not name."""
OWN_PORTS = {
    "etcd": ("etcd", "etcd_peer", "etcd_metrics"),
    "envoy": ("envoy_status",),
    "prometheus": ("prometheus",),
    "alertmanager": ("alertmanager",),
}
"""Named ports that each process of a kind has for itself, so that a copy NAME has others, called PORT@NAME. Envoys
listen for the public on one and the same port: the kernel gives each of them a part of the connections, and one that is
dead none (SO_REUSEPORT)."""


class TopologyError(ValueError):
    """The topology, a profile or an override makes no sense; the message says what and where."""


class Process(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process of the mesh, as written in the topology file."""

    service: str
    """Its identity: name in certificates and DNS; the module is services.<name with underscores>."""
    kind: str = "service"
    """"service", "etcd", "envoy", "prometheus" or "alertmanager"."""
    port: int = -1
    """Offset of its gRPC port; only services have one."""
    zone: str = "zone-a"
    after: tuple[str, ...] = ()
    """See libs.supervisor.spec.ProcessSpec, also for `uses`."""
    uses: tuple[str, ...] = ()
    trace: bool = True
    """Whether it exports traces to the collector."""
    env: dict[str, str] = {}
    settings: dict[str, Any] = {}
    """Fields of its config.py. The table `process` in it is none of the service's: it is a Launch."""


class Launch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a service is started, where a profile or an override wants it otherwise: the table `process`."""

    python: str = ""
    """Its interpreter, relative to the checkout; empty takes the one that runs `weir up`. For an engine that lives in
    an environment of its own."""
    ready_timeout: float = READY_TIMEOUT
    """See libs.supervisor.spec.ProcessSpec."""


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    process: dict[str, Process]
    ports: dict[str, int] = {}
    """Named offsets of ports that are not a service's gRPC port."""
    optional: dict[str, Process] = {}
    """Processes that are there only where REPLICAS says so."""


def parse(text: str) -> Topology:
    """Reads a topology file. Raises TopologyError."""
    try:
        topology = msgspec.convert(tomllib.loads(text), Topology)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise TopologyError(f"topology: {error}") from error
    for name, process in {**topology.process, **topology.optional}.items():
        if (process.kind == "service") != (process.port >= 0):
            raise TopologyError(f"topology: {name}: a service has a port, others have none")
    return topology


def parse_profile(text: str) -> dict[str, dict[str, Any]]:
    """Reads a profile: settings by service or process name. Raises TopologyError."""
    try:
        return msgspec.convert(tomllib.loads(text), dict[str, dict[str, Any]])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise TopologyError(f"profile: {error}") from error


def parse_overrides(assignments: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Turns "worker.simulated.step_interval=0.02" into settings by name. The value is JSON, or else a string.

    Raises TopologyError for an assignment without a name, a field or "=".
    """
    settings: dict[str, dict[str, Any]] = {}
    for assignment in assignments:
        path, equals, raw = assignment.partition("=")
        name, dot, field = path.partition(".")
        if not equals or not dot or not name or not field:
            raise TopologyError(f"--set {assignment}: expected NAME.FIELD=VALUE")
        try:
            value = json.loads(raw)
        except ValueError:
            value = raw
        for part in reversed(field.split(".")):
            value = {part: value}
        settings[name] = merge(settings.get(name, {}), value)
    return settings


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`; tables are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return merged


def settings_for(topology: Topology, name: str, *layers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A process's settings: the topology's, then each layer's for all, for its service, for itself."""
    process = topology.process[name]
    merged: dict[str, Any] = dict(process.settings)
    for layer in layers:
        for key in dict.fromkeys((EVERY, process.service, name)):
            merged = merge(merged, layer.get(key, {}))
    return merged


def split_launch(name: str, settings: Mapping[str, Any]) -> tuple[Launch, dict[str, Any]]:
    """Takes the table `process` out of a service's settings. Raises TopologyError."""
    rest = dict(settings)
    try:
        return msgspec.convert(rest.pop("process", {}), Launch), rest
    except msgspec.ValidationError as error:
        raise TopologyError(f"{name}: process: {error}") from error


def unknown_names(topology: Topology, layer: Mapping[str, object]) -> list[str]:
    """Names in a profile or in overrides that are neither a service nor a process."""
    known = {EVERY, REPLICAS, *topology.process, *(process.service for process in topology.process.values())}
    return sorted(set(layer) - known)


def replica_counts(*layers: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Processes by service, as the layers' tables REPLICAS say; later ones win. Raises TopologyError."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge(merged, layer.get(REPLICAS, {}))
    for service, count in merged.items():
        least = 0 if service in OPTIONAL else 1
        if not isinstance(count, int) or isinstance(count, bool) or count < least:
            raise TopologyError(f"{REPLICAS}.{service}: at least {least}, a whole number")
    return merged


def with_replicas(topology: Topology, counts: Mapping[str, int]) -> Topology:
    """The topology with so many processes of each of these services. Raises TopologyError.

    Too many: the last ones go. Too few: the service's first process is copied, settings and zone included, as NAME-2
    and so on with ports of REPLICA_PORTS, and who starts after it or uses it does so with its copies too.
    """
    processes, ports = dict(topology.process), dict(topology.ports)
    taken = {process.port for process in processes.values()} | set(ports.values())
    free = (port for port in REPLICA_PORTS if port not in taken)
    processes |= {name: process for name, process in topology.optional.items() if counts.get(process.service)}
    for service, count in counts.items():
        names = [name for name, process in processes.items() if process.service == service]
        if not names and count:
            raise TopologyError(f"{REPLICAS}: {service} is no service")
        gone = set(names[count:])
        processes = {name: _without(process, gone) for name, process in processes.items() if name not in gone}
        if not count:
            continue
        unused = (name for number in count_from(2) if (name := f"{names[0]}-{number}") not in topology.process)
        copies = [next(unused) for _ in range(count - len(names))]
        processes = {each: _with(process, names[0], copies) for each, process in processes.items()}
        original = processes[names[0]]
        own = OWN_PORTS.get(original.kind, ())
        for name in copies:
            found = list(islice(free, len(own) or 1))
            if len(found) < (len(own) or 1):
                raise TopologyError(f"{REPLICAS}: no port is left for {name}")
            processes[name] = original if own else msgspec.structs.replace(original, port=found[0])
            ports |= {f"{each}@{name}": port for each, port in zip(own, found, strict=False)}
    return msgspec.structs.replace(topology, process=processes, ports=ports)


def _without(process: Process, gone: set[str]) -> Process:
    after, uses = (tuple(each for each in names if each not in gone) for names in (process.after, process.uses))
    return msgspec.structs.replace(process, after=after, uses=uses)


def _with(process: Process, original: str, copies: list[str]) -> Process:
    after, uses = (names + tuple(copies) * (original in names) for names in (process.after, process.uses))
    return msgspec.structs.replace(process, after=after, uses=uses)


_VARIABLE = re.compile(r"\$\{([a-z_.]+)\}")


def substitute(value: Any, variables: Mapping[str, str | int]) -> Any:
    """Replaces ${name} in every string of a JSON-like value. A string that is one variable takes its type.

    Raises TopologyError for an unknown variable.
    """
    if isinstance(value, Mapping):
        return {key: substitute(item, variables) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [substitute(item, variables) for item in value]
    if not isinstance(value, str):
        return value
    if (whole := _VARIABLE.fullmatch(value)) is not None:
        return _look_up(variables, whole[1])
    return _VARIABLE.sub(lambda match: str(_look_up(variables, match[1])), value)


def _look_up(variables: Mapping[str, str | int], name: str) -> str | int:
    if name not in variables:
        raise TopologyError(f"unknown variable ${{{name}}}")
    return variables[name]
