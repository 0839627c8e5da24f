"""From topology to plan: every process's command line, configuration file, ports and probe. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libs.authority.identity import Identity, Operator, dns_name, etcd_user
from libs.authority.stores import CLIENT_NAME, ROOT_USER, ROWS, Row
from libs.config import TlsFiles
from libs.pki import EDGE
from libs.supervisor.spec import EtcdProbe, GrpcProbe, HttpProbe, ProcessSpec
from services.cli.mesh.topology import (
    METRICS_OFFSET,
    Process,
    Topology,
    TopologyError,
    settings_for,
    split_launch,
    substitute,
)

HOST = "127.0.0.1"
OTHERS = (EDGE, "demo-client")
"""Certificates of a development mesh that are no process's."""
# One worker thread: Envoy serves tens of thousands of requests per second on one core, and the development mesh shares
# its few cores with everything else. The access log is written out every second instead of every ten.
_ENVOY = ("--concurrency", "1", "--file-flush-interval-msec", "1000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a mesh lives."""

    root: Path
    """The checkout."""
    state: Path
    """The state directory, absolute."""
    port_base: int
    python: str
    etcd: str
    """Path of the etcd program."""
    envoy: str
    """Path of the Envoy program."""
    operator: str = "operator"
    """Who starts it: its first owner, and whose certificate `weir` shows."""
    blob_store: str = ""
    """Address of a blob store of model files elsewhere; empty: a folder of the state directory."""

    @property
    def blobs(self) -> str:
        """Address of the blob store of model files, as libs.artifacts.open_store knows it."""
        return self.blob_store or (self.state / "blobs").as_uri()

    @property
    def signing_key(self) -> Path:
        """The private key that signs the models of this mesh."""
        return self.secrets / "model-signing.key"

    @property
    def pki(self) -> Path:
        """Certificates."""
        return self.state / "pki"

    @property
    def secrets(self) -> Path:
        """The pepper, the demo keys, the key that signs models and the certificate that may everything in etcd."""
        return self.state / "secrets"

    @property
    def etcd_root(self) -> TlsFiles:
        """The certificate that gives the processes their rights in etcd. No process has it."""
        return TlsFiles(
            ca=str(self.pki / "ca.pem"),
            cert=str(self.secrets / f"{ROOT_USER}.pem"),
            key=str(self.secrets / f"{ROOT_USER}.key"),
        )

    def data(self, name: str) -> Path:
        """A process's own folder."""
        return self.state / "data" / name

    def config(self, name: str) -> Path:
        """A process's configuration file."""
        return self.state / "config" / f"{name}.json"

    def xds(self, name: str) -> Path:
        """A process's xDS bootstrap."""
        return self.state / "config" / f"{name}.xds.json"

    @property
    def operator_tls(self) -> TlsFiles:
        """The operator's TLS files."""
        return self.tls(etcd_user(Operator(self.operator)))

    def tls(self, name: str) -> TlsFiles:
        """TLS files by common name: of a process, of a person, or of one of `OTHERS`."""
        return TlsFiles(
            ca=str(self.pki / "ca.pem"), cert=str(self.pki / f"{name}.pem"), key=str(self.pki / f"{name}.key")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstraps:
    """How xDS bootstraps are rendered (libs.xds_bootstrap.render, libs.envoy_bootstrap.render)."""

    grpc: Callable[..., str]
    envoy: Callable[..., str]


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
    identities: tuple[Identity, ...]
    """Whose certificates the processes show."""


def build(
    topology: Topology,
    site: Site,
    bootstraps: Bootstraps,
    *layers: Mapping[str, Mapping[str, Any]],
) -> Plan:
    """Plans a mesh; `layers` are settings laid over the topology's, later ones win. Raises TopologyError."""
    planner = _Planner(topology, site, bootstraps, layers)
    processes = tuple(planner.process(name) for name in topology.process)
    return Plan(
        processes=processes,
        files=planner.files,
        folders=tuple(site.data(name) for name in topology.process),
        ports=planner.ports,
        addresses=planner.addresses,
        identities=tuple(planner.identities),
    )


class _Planner:
    def __init__(
        self,
        topology: Topology,
        site: Site,
        bootstraps: Bootstraps,
        layers: tuple[Mapping[str, Mapping[str, Any]], ...],
    ) -> None:
        self._topology = topology
        self._site = site
        self._bootstraps = bootstraps
        self._layers = layers
        self.files: dict[Path, str] = {}
        self.ports: dict[int, str] = {}
        self.addresses: dict[str, dict[str, Any]] = {}
        self.identities: list[Identity] = []

    def process(self, name: str) -> ProcessSpec:
        process = self._topology.process[name]
        match process.kind:
            case "service":
                return self._service(name, process)
            case "etcd":
                return self._etcd(name, process)
            case "envoy":
                return self._envoy(name, process)
            case other:
                raise TopologyError(f"topology: {name}: unknown kind {other!r}")

    def _port(self, name: str) -> int:
        """The port of a service, or one named in the topology."""
        if name in self._topology.ports:
            return self._site.port_base + self._topology.ports[name]
        process = self._topology.process.get(name)
        if process is None or process.port < 0:
            raise TopologyError(f"topology: no port is called {name!r}")
        return self._site.port_base + process.port

    def _claim(self, port: int, name: str) -> int:
        if port in self.ports:
            raise TopologyError(f"topology: {name} and {self.ports[port]} both want port {port}")
        if not 0 < port < 65536:
            raise TopologyError(f"{name}: {port} is no port; choose another WEIR_PORT_BASE")
        self.ports[port] = name
        return port

    def _identify(self, process: Process, instance: str = "", pool: str = "") -> TlsFiles:
        """Certificate files that say who the process is."""
        try:
            identity = Identity(process.service, instance, pool, process.zone if instance else "")
        except ValueError as error:
            raise TopologyError(f"topology: {error}") from error
        name = etcd_user(identity)
        if name in OTHERS:
            raise TopologyError(f"topology: {name} is the name of a certificate that is no process's")
        self.identities.append(identity)
        return self._site.tls(name)

    def _variables(self, name: str) -> dict[str, str | int]:
        site = self._site
        names = [*self._topology.ports, *(n for n, p in self._topology.process.items() if p.port >= 0)]
        return {
            "state": str(site.state),
            "root": str(site.root),
            "data": str(site.data(name)),
            "pki": str(site.pki),
            "secrets": str(site.secrets),
            "blobs": site.blobs,
            "operator": site.operator,
            **{f"port.{each.replace('-', '_')}": self._port(each) for each in names},
        }

    def _spec(self, name: str, process: Process, **fields: Any) -> ProcessSpec:
        fields = {"cwd": str(self._site.root), **fields}
        return ProcessSpec(name=name, after=process.after, uses=process.uses, **fields)

    def _service(self, name: str, process: Process) -> ProcessSpec:
        site = self._site
        port = self._claim(self._port(name), name)
        metrics = self._claim(port + METRICS_OFFSET, f"{name} (metrics)")
        own = substitute(settings_for(self._topology, name, *self._layers), self._variables(name))
        launch, own = split_launch(name, own)
        tls = self._identify(process, name, own.get("pool", ""))
        collector = f"{HOST}:{self._port('collector')}" if process.trace else ""
        common = {
            "service": process.service,
            "instance": name,
            "zone": process.zone,
            "host": HOST,
            "port": port,
            "metrics_port": metrics,
            "tls": {"ca": tls.ca, "cert": tls.cert, "key": tls.key},
            "etcd": [f"{HOST}:{self._port('etcd' if ROWS.get(process.service, Row()).direct else 'door')}"],
            "registry": "xds:///registry.weir.internal",
            "state_dir": str(site.data(name)),
            "trace_endpoint": collector,
        }
        settings = {**substitute(common, self._variables(name)), **own}
        self.files[site.config(name)] = _json(settings)
        self.files[site.xds(name)] = self._bootstraps.grpc(
            node_id=name, zone=process.zone, xds=(f"{HOST}:{self._port('controlplane')}",), tls=tls
        )
        self.addresses[name] = {
            "service": process.service,
            "zone": process.zone,
            "address": f"{HOST}:{port}",
            "metrics": f"{HOST}:{metrics}",
        }
        module = f"services.{process.service.replace('-', '_')}"
        return self._spec(
            name,
            process,
            argv=(
                str(site.root / launch.python) if launch.python else site.python,
                "-m",
                module,
                "--config",
                str(site.config(name)),
            ),
            env={"GRPC_XDS_BOOTSTRAP": str(site.xds(name)), "PYTHONUNBUFFERED": "1", **process.env},
            readiness=GrpcProbe(port=port, tls=tls, server_name=dns_name(process.service)),
            ready_timeout=launch.ready_timeout,
        )

    def _etcd(self, name: str, process: Process) -> ProcessSpec:
        site = self._site
        tls = self._identify(process, name)
        client = self._claim(self._port("etcd"), name)
        peer = self._claim(self._port("etcd_peer"), f"{name} (peer)")
        metrics = self._claim(self._port("etcd_metrics"), f"{name} (metrics)")
        peer_url = f"https://{HOST}:{peer}"
        argv = (
            site.etcd,
            f"--name={name}",
            f"--data-dir={site.data(name)}",
            f"--listen-client-urls=https://{HOST}:{client}",
            f"--advertise-client-urls=https://{HOST}:{client}",
            f"--cert-file={tls.cert}",
            f"--key-file={tls.key}",
            f"--trusted-ca-file={tls.ca}",
            "--client-cert-auth",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster={name}={peer_url}",
            f"--peer-cert-file={tls.cert}",
            f"--peer-key-file={tls.key}",
            f"--peer-trusted-ca-file={tls.ca}",
            "--peer-client-cert-auth",
            f"--listen-metrics-urls=http://{HOST}:{metrics}",
            # History is only needed by a watcher that was away for a moment; it re-reads after more than this.
            "--auto-compaction-mode=revision",
            "--auto-compaction-retention=1000",
            # One apply is one transaction; see libs.changes.MAX_WRITES.
            "--max-txn-ops=4096",
            "--max-request-bytes=10485760",
            # A single member has nobody to wait for; the defaults would cost a second at each start.
            "--heartbeat-interval=100",
            "--election-timeout=500",
            # At "warn" it complains about every question for its health before it has a leader.
            "--log-level=error",
            "--logger=zap",
            "--enable-v2=false",
            # Only certificates of this name connect (libs.authority.stores.CLIENT_NAME), over gRPC: the HTTP gateway
            # would come with etcd's own certificate.
            f"--client-cert-allowed-hostname={CLIENT_NAME}",
            "--enable-grpc-gateway=false",
        )
        self.addresses[name] = {
            "service": process.service,
            "zone": process.zone,
            "address": f"{HOST}:{client}",
            "metrics": f"{HOST}:{metrics}",
        }
        return self._spec(name, process, argv=argv, env=dict(process.env), readiness=EtcdProbe(port=client, tls=tls))

    def _envoy(self, name: str, process: Process) -> ProcessSpec:
        site = self._site
        https = self._claim(self._port("edge_https"), f"{name} (edge, TLS)")
        admin = self._claim(self._port("edge_admin"), f"{name} (admin API, TLS)")
        status = self._claim(self._port("envoy_status"), f"{name} (status)")
        bootstrap = site.state / "config" / f"{name}.yaml"
        self.files[bootstrap] = self._bootstraps.envoy(
            node_id=name,
            zone=process.zone,
            xds=(f"{HOST}:{self._port('controlplane')}",),
            tls=self._identify(process),
            status_port=status,
        )
        self.addresses[name] = {
            "service": process.service,
            "zone": process.zone,
            "address": f"{HOST}:{https}",
            "admin_address": f"{HOST}:{admin}",
            "metrics": f"{HOST}:{status}/stats/prometheus",
        }
        if "edge_http" in self._topology.ports:
            http = self._claim(self._port("edge_http"), f"{name} (edge, HTTP)")
            self.addresses[name]["plain_address"] = f"{HOST}:{http}"
        return self._spec(
            name,
            process,
            # Hot restart shares memory between Envoys of one machine; side by side meshes must not meet there.
            argv=(site.envoy, "-c", str(bootstrap), "--log-level", "warning", "--disable-hot-restart", *_ENVOY),
            env=dict(process.env),
            # Its admin socket is relative to this folder, which is the user's alone: the state directory's own path may
            # be longer than a socket's may.
            cwd=str(site.data(name)),
            # Not the edge's own /healthz: every look would be an access log line and a trace.
            readiness=HttpProbe(port=status, path="/ready"),
        )


def _json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"
