"""From topology to plan: every process's command line, settings, ports, keys and probe, wherever it runs. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from libs.authority.identity import Identity, dns_name, etcd_user
from libs.authority.stores import DOOR, ROWS, Row
from libs.pki import EDGE
from libs.supervisor.spec import EtcdProbe, GrpcProbe, HttpProbe, ProcessSpec
from services.cli.mesh.etcd_flags import etcd_flags
from services.cli.mesh.monitoring import alertmanager_flags, prometheus_config, prometheus_flags
from services.cli.mesh.sites import Laptop, Site
from services.cli.mesh.topology import (
    METRICS_OFFSET,
    Process,
    Topology,
    TopologyError,
    settings_for,
    split_launch,
    substitute,
)
from services.cli.mesh.units import DRAIN, ENDING, Plan, Unit

CLIENT = "demo-client"
OTHERS = (EDGE, CLIENT)
"""Certificates of a development mesh that are no process's."""
# One worker thread: Envoy serves tens of thousands of requests per second on one core, and the development mesh shares
# its few cores with everything else. The access log is written out every second instead of every ten.
_ENVOY = ("--concurrency", "1", "--file-flush-interval-msec", "1000")
_SHARED = "the edge"
"""What ports are claimed by that several Envoys listen on."""
_SECRET = re.compile(r"\$\{secret\.([a-z]+)\}")
_HOOK = Path("deploy", "images", "drain")
ALERTMANAGER = Path("deploy", "alertmanager.yml")
"""Who is told of alerts: the operator's own file."""
SHARED = (
    "libs.service",
    "prometheus_client",
    "libs.mux.client",
    "libs.mux.server",
    "opentelemetry.sdk.trace.export",
    "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
)
"""What every service imports, sooner or later, and nothing that has metrics of its own: a process shows those that it
counts."""
SECRETS = ("pepper", "cursors", "answers")
"""Secrets that settings may name."""


Bootstrap = Callable[..., str]
"""How Envoy's bootstrap is rendered: libs.envoy_bootstrap.render."""


def build(
    topology: Topology,
    site: Site,
    bootstrap: Bootstrap,
    *layers: Mapping[str, Mapping[str, Any]],
) -> Plan:
    """Plans a mesh; `layers` are settings laid over the topology's, later ones win. Raises TopologyError."""
    planner = _Planner(topology, site, bootstrap, layers)
    units = tuple(planner.unit(name) for name in topology.process)
    return Plan(
        processes=tuple(_supervised(unit, site.python("")) for unit in units),
        files={path: content for unit in units for path, content in unit.files.items()},
        folders=tuple(site.data(name) for name in topology.process),
        ports=planner.ports,
        addresses=planner.addresses,
        units=units,
    )


def _supervised(unit: Unit, python: str) -> ProcessSpec:
    """As the supervisor of one machine, which `python` runs, starts it."""
    return ProcessSpec(
        name=unit.name,
        argv=unit.argv,
        fork=unit.argv[:2] == (python, "-m"),
        env=dict(unit.env),
        cwd=str(unit.cwd),
        after=unit.process.after,
        uses=unit.process.uses,
        readiness=unit.readiness,
        ready_timeout=unit.ready_timeout,
        stop_grace=unit.stop_grace,
        before_restart=unit.before_restart,
    )


@dataclass(slots=True)
class _Planner:
    _topology: Topology
    _site: Site
    _bootstrap: Bootstrap
    _layers: tuple[Mapping[str, Mapping[str, Any]], ...]
    ports: dict[int, str] = field(default_factory=dict)
    addresses: dict[str, dict[str, Any]] = field(default_factory=dict)

    def unit(self, name: str) -> Unit:
        process = self._topology.process[name]
        # A copy is in the zone of its original unless told otherwise, and its certificate says in which.
        zone = settings_for(self._topology, name, *self._layers).get("zone", process.zone)
        process = msgspec.structs.replace(process, zone=zone)
        match process.kind:
            case "service":
                return self._service(name, process)
            case "etcd":
                return self._etcd(name, process)
            case "envoy":
                return self._envoy(name, process)
            case "prometheus" | "alertmanager":
                return self._monitoring(name, process)
            case other:
                raise TopologyError(f"topology: {name}: unknown kind {other!r}")

    def _port(self, name: str, of: str = "") -> int:
        """The port of a service, or one named in the topology; of a process that has others, its own."""
        ports = self._topology.ports
        if (own := ports.get(f"{name}@{of}", ports.get(name))) is not None:
            return self._site.port_base + own
        process = self._topology.process.get(name)
        if process is None or process.port < 0:
            raise TopologyError(f"topology: no port is called {name!r}")
        return self._site.port_base + process.port

    def _claim(self, port: int, name: str) -> int:
        if self.ports.get(port, name) != name or (port in self.ports and not name.startswith(_SHARED)):
            raise TopologyError(f"topology: {name} and {self.ports[port]} both want port {port}")
        if not 0 < port < 65536:
            raise TopologyError(f"{name}: {port} is no port; choose another WEIR_PORT_BASE")
        self.ports[port] = name
        return port

    def _at(self, name: str, port: int) -> str:
        """The address of a process."""
        return f"{self._site.host(name)}:{port}"

    def _tell(self, name: str, process: Process, port: int, metrics: str) -> None:
        """Where a process is, to others."""
        own = {"service": process.service, "zone": process.zone}
        self.addresses[name] = {**own, "address": self._at(name, port), "metrics": metrics}

    def _all(self, service: str) -> list[str]:
        """The addresses of a service's processes."""
        found = [name for name, each in self._topology.process.items() if each.service == service]
        return [self._at(name, self._port(name)) for name in found or [service]]

    def _members(self) -> list[str]:
        """The members of etcd."""
        named = [name for name, each in self._topology.process.items() if each.kind == "etcd"]
        return list(self._site.members) or named or ["etcd"]

    def _etcds(self, port: str = "etcd") -> dict[str, str]:
        """The addresses of etcd's members, by name."""
        return {name: self._at(name, self._port(port, name)) for name in self._members()}

    def _identify(self, process: Process, instance: str = "", pool: str = "", region: str = "") -> Identity:
        """Who the process is."""
        try:
            identity = Identity(process.service, instance, pool, process.zone if instance else "", region)
        except ValueError as error:
            raise TopologyError(f"topology: {error}") from error
        if (name := etcd_user(identity)) in OTHERS:
            raise TopologyError(f"topology: {name} is the name of a certificate that is no process's")
        return identity

    def _variables(self, name: str) -> dict[str, Any]:
        site = self._site
        names = [*self._topology.ports, *(n for n, p in self._topology.process.items() if p.port >= 0)]
        shown = {f"tls.{each}": site.tls(each) for each in (EDGE, "envoy")}
        return {
            "state": str(site.state),
            "root": str(site.root),
            "data": str(site.data(name)),
            "listen": site.listen,
            "blobs": site.blobs,
            "operator": site.operator,
            **{f"secret.{each}": str(site.secret(each)) for each in SECRETS},
            **{f"{where}.{part}": getattr(tls, part) for where, tls in shown.items() for part in tls.__struct_fields__},
            **{f"port.{each.replace('-', '_')}": self._port(each) for each in names},
            **({} if site.plain_edge else {"port.edge_http": None}),
        }

    def _service(self, name: str, process: Process) -> Unit:
        site = self._site
        port = self._claim(self._port(name), name)
        metrics = self._claim(port + METRICS_OFFSET, f"{name} (metrics)")
        asked = settings_for(self._topology, name, *self._layers)
        launch, own = split_launch(name, substitute(asked, self._variables(name)))
        try:
            python = site.python(launch.python)
        except ValueError as error:
            raise TopologyError(f"{name}: {error}") from error
        identity = self._identify(process, name, own.get("pool", ""), own.get("region", ""))
        tls = site.tls(etcd_user(identity))
        settings = {
            "service": process.service,
            "instance": name,
            "zone": process.zone,
            "host": site.listen,
            "advertise": site.advertise,
            "port": port,
            "metrics_host": site.listen,
            "metrics_port": metrics,
            "tls": {"ca": tls.ca, "cert": tls.cert, "key": tls.key},
            "etcd": list(self._etcds().values()) if ROWS.get(process.service, Row()).direct else self._all(DOOR),
            "xds": self._all("controlplane"),
            "registry": f"xds:///{dns_name('registry')}",
            "state_dir": str(site.data(name)),
            "trace_endpoint": self._all("collector")[0] if process.trace else "",
            **own,
        }
        self._tell(name, process, port, self._at(name, metrics))
        module = f"services.{process.service.replace('-', '_')}"
        written = json.dumps(asked)
        return Unit(
            name=name,
            process=process,
            argv=(python, "-m", module, "--config", str(site.config(name))),
            env={"PYTHONUNBUFFERED": "1", **process.env},
            settings=settings,
            files={site.config(name): json.dumps(settings, indent=2) + "\n"},
            ports={"grpc": port, "metrics": metrics},
            identity=identity,
            tls=tls,
            secrets={each: site.secret(each) for each in dict.fromkeys(_SECRET.findall(written))},
            blobs="${blobs}" in written,
            readiness=GrpcProbe(port=port, tls=tls, server_name=dns_name(process.service)),
            ready_timeout=launch.ready_timeout,
            stop_grace=own.get("drain_seconds", DRAIN) + ENDING,
            cwd=site.root,
        )

    def _etcd(self, name: str, process: Process) -> Unit:
        site = self._site
        identity = self._identify(process, name)
        tls = site.tls(etcd_user(identity))
        client = self._claim(self._port("etcd", name), name)
        peer = self._claim(self._port("etcd_peer", name), f"{name} (peer)")
        metrics = self._claim(self._port("etcd_metrics", name), f"{name} (metrics)")
        members = self._etcds("etcd_peer")
        self._tell(name, process, client, self._at(name, metrics))
        return Unit(
            name=name,
            process=process,
            argv=(site.etcd, *etcd_flags(name, site, tls, members, client=client, peer=peer, metrics=metrics)),
            # Go wakes a thread on another core for whatever comes; beside a whole mesh that is a third of etcd's CPU.
            env={"GOMAXPROCS": "1", **process.env} if len(members) == 1 and not site.members else dict(process.env),
            files={},
            ports={"client": client, "peer": peer, "metrics": metrics},
            identity=identity,
            tls=tls,
            readiness=EtcdProbe(port=client, tls=tls),
            cwd=site.root,
        )

    def _envoy(self, name: str, process: Process) -> Unit:
        site = self._site
        ports = {
            "https": self._claim(self._port("edge_https"), f"{_SHARED} (TLS)"),
            "admin": self._claim(self._port("edge_admin"), f"{_SHARED} (admin API, TLS)"),
            "status": self._claim(self._port("envoy_status", name), f"{name} (status)"),
        }
        self._tell(name, process, ports["https"], f"{self._at(name, ports['status'])}/stats/prometheus")
        self.addresses[name]["admin_address"] = self._at(name, ports["admin"])
        if "edge_http" in self._topology.ports and site.plain_edge:
            ports["http"] = self._claim(self._port("edge_http"), f"{_SHARED} (HTTP)")
            self.addresses[name]["plain_address"] = self._at(name, ports["http"])
        identity = self._identify(process)
        tls = site.tls(etcd_user(identity))
        bootstrap = site.config(name).with_name(f"{name}.yaml")
        text = self._bootstrap(
            node_id=name,
            zone=process.zone,
            xds=tuple(self._all("controlplane")),
            tls=tls,
            status_port=ports["status"],
            status_host=site.listen,
            admin_socket=site.admin_socket(name),
        )
        return Unit(
            name=name,
            process=process,
            # Hot restart shares memory between Envoys of one machine; side by side meshes must not meet there.
            argv=(site.envoy, "-c", str(bootstrap), "--log-level", "warning", "--disable-hot-restart", *_ENVOY),
            env=dict(process.env),
            files={bootstrap: text},
            ports=ports,
            identity=identity,
            tls=tls,
            # Its admin socket is in this folder, which is the user's alone.
            cwd=site.data(name),
            before_restart=(site.python(""), str(site.root / _HOOK), str(DRAIN), site.admin_socket(name), "close"),
            # Not the edge's own /healthz: every look would be an access log line and a trace.
            readiness=HttpProbe(port=ports["status"], path="/ready"),
        )

    def _monitoring(self, name: str, process: Process) -> Unit:
        """Prometheus or Alertmanager. Metrics pages ask nobody who he is, so that it needs no certificate."""
        site, kind = self._site, process.kind
        if not isinstance(site, Laptop):
            raise TopologyError(f"{name}: elsewhere it is the cluster's own (k8s/components/monitoring)")
        port = self._claim(self._port(kind, name), name)
        self._tell(name, process, port, self._at(name, port))
        config = site.config(name).with_suffix(".yml")
        listen = f"{site.listen}:{port}"
        if kind == "prometheus":
            asked = settings_for(self._topology, name, *self._layers)
            text = self._prometheus_config(substitute(asked, self._variables(name)))
            argv = (site.prometheus, *prometheus_flags(config, site.data(name), listen))
        else:
            text = (site.root / ALERTMANAGER).read_text(encoding="utf-8")
            argv = (site.alertmanager, *alertmanager_flags(config, site.data(name), listen))
        return Unit(
            name=name,
            process=process,
            argv=argv,
            env=dict(process.env),
            files={config: text},
            ports={"http": port, "metrics": port},
            identity=None,
            tls=None,
            readiness=HttpProbe(port=port, path="/-/ready"),
            cwd=site.data(name),
        )

    def _prometheus_config(self, settings: Mapping[str, Any]) -> str:
        def pages(kind: str, port: str, path: str = "") -> dict[str, str]:
            names = [name for name, each in self._topology.process.items() if each.kind == kind]
            return {name: self._at(name, self._port(port, name)) + path for name in names}

        planes = [name for name, each in self._topology.process.items() if each.service == "controlplane"]
        return prometheus_config(
            Path(settings["rules"]),
            interval=settings["interval"],
            control_planes=[self._at(name, self._port(name) + METRICS_OFFSET) for name in planes],
            alertmanagers=list(pages("alertmanager", "alertmanager").values()),
            named={
                "etcd": pages("etcd", "etcd_metrics"),
                "envoy": pages("envoy", "envoy_status", "/stats/prometheus"),
                "prometheus": pages("prometheus", "prometheus"),
                "alertmanager": pages("alertmanager", "alertmanager"),
            },
        )
