"""Who is where, and which file lies where: on a laptop, all on one address and in one folder, or in containers, each
with a host name, a certificate and a folder of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from libs.authority.identity import Operator, etcd_user
from libs.authority.stores import ROOT_USER
from libs.config import AUTO, TlsFiles
from libs.pki import EDGE, LOOPBACK

PORT_BASE = 18000
"""Where ports begin unless told otherwise; in containers always."""

FOLDER = Path("/etc/weir")
"""Where a container has its settings, keys and secrets, read-only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laptop:
    """A mesh on one machine, for one user, on loopback. Paths and addresses are as its processes see them."""

    root: Path
    """What ${root} means, with `deploy` and `models`: the checkout, or the folder of an installed wheel."""
    state: Path
    """The state directory, absolute: what processes of one machine share."""
    port_base: int
    """What the topology's offsets are added to."""
    interpreter: str
    """The Python that runs the services."""
    etcd: str
    envoy: str
    prometheus: str = "prometheus"
    alertmanager: str = "alertmanager"
    operator: str = "operator"
    """Its first owner, and whose certificate `weir` shows."""
    blob_store: str = ""
    """Address of a blob store of model files elsewhere; empty: a folder of the state directory."""
    plain_edge: bool = True
    """Whether the edge also has a port without TLS."""
    listen: str = "127.0.0.1"
    advertise: str = ""
    """What every process says of its own address: `ServiceSettings.advertise`."""
    members: tuple[str, ...] = ()
    """The members of etcd, where each has a name of its own; empty: the one process of the topology."""

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
        """The pepper, keys of cursors, the demo keys, the key that signs models, the certificate that may everything in
        etcd."""
        return self.state / "secrets"

    @property
    def etcd_root(self) -> TlsFiles:
        """The certificate that gives the processes their rights in etcd. No process has it."""
        own = self.secrets / ROOT_USER
        return TlsFiles(ca=str(self.pki / "ca.pem"), cert=f"{own}.pem", key=f"{own}.key")

    @property
    def operator_tls(self) -> TlsFiles:
        """The operator's TLS files."""
        return self.tls(etcd_user(Operator(self.operator)))

    @property
    def client_bootstrap(self) -> Path:
        """The xDS bootstrap of the workload demo-client."""
        return self.state / "config" / "demo-client.xds.json"

    def host(self, name: str) -> str:
        """Under which host others reach a process."""
        return self.listen

    def names(self, service: str, name: str) -> tuple[str, ...]:
        """Hosts and IPs that the certificate of a process carries because callers verify the address that they dial."""
        return LOOPBACK if service in (EDGE, "controlplane") else ()

    def python(self, wanted: str) -> str:
        """The interpreter of a service; `wanted` is a profile's own, relative to the checkout, or empty."""
        return str(self.root / wanted) if wanted else self.interpreter

    def data(self, name: str) -> Path:
        """A process's own folder."""
        return self.state / "data" / name

    def config(self, name: str) -> Path:
        """A service's settings, or Envoy's bootstrap."""
        return self.state / "config" / f"{name}.json"

    def secret(self, name: str) -> Path:
        """A secret's file."""
        return self.secrets / name

    def tls(self, name: str) -> TlsFiles:
        """TLS files by common name, where whoever shows that certificate finds them."""
        own = self.pki / name
        return TlsFiles(ca=str(self.pki / "ca.pem"), cert=f"{own}.pem", key=f"{own}.key")

    def admin_socket(self, name: str) -> str:
        """Where the socket of Envoy's admin interface is; relative to its folder: sockets have short paths only."""
        return "admin.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A mesh of containers: a process is reached under its name, has its own key and no other, and writes nowhere but
    below /var/lib/weir (and /tmp). What it is asked means what a `Laptop` is asked."""

    operator: str = "operator"
    blobs: str = "file:///var/lib/weir/blobs"
    plain_edge: bool = False
    public: tuple[str, ...] = ("localhost", "127.0.0.1", "::1")
    """Names under which the public reaches the edge."""
    members: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    """What a host's name may be followed by where it is dialled, "weir.svc.cluster.local"."""
    port_base: int = PORT_BASE
    listen: str = "0.0.0.0"  # noqa: S104 - the container is the boundary
    advertise: str = AUTO
    etcd: str = "etcd"
    envoy: str = "envoy"
    prometheus: str = "prometheus"
    alertmanager: str = "alertmanager"
    root: Path = Path("/usr/share/weir")
    state: Path = Path("/var/lib/weir")

    def host(self, name: str) -> str:
        # A member of etcd is reached under the name of their service.
        return f"{name}.etcd" if name in self.members else name

    def names(self, service: str, name: str) -> tuple[str, ...]:
        if service not in (EDGE, "controlplane", "etcd"):
            return ()
        hosts = ("envoy",) if service == EDGE else (name, *map(self.host, self.members if service == "etcd" else ()))
        return (
            *(self.public if service == EDGE else ()),
            *hosts,
            *(f"{host}.{domain}" for host in hosts for domain in self.domains),
        )

    def python(self, wanted: str) -> str:
        """:raises ValueError: one of its own is wanted."""
        if wanted:
            raise ValueError("process.python is for a mesh on one machine; in a container it is the image's")
        return "python"

    def data(self, name: str) -> Path:
        return self.state / "data"

    def config(self, name: str) -> Path:
        return FOLDER / "config.json"

    def secret(self, name: str) -> Path:
        return FOLDER / "secrets" / name

    def tls(self, name: str) -> TlsFiles:
        # The names of the files are those of Kubernetes's TLS secrets.
        folder = FOLDER / (EDGE if name == EDGE else "tls")
        return TlsFiles(ca=str(folder / "ca.crt"), cert=str(folder / "tls.crt"), key=str(folder / "tls.key"))

    def admin_socket(self, name: str) -> str:
        return str(self.state / "admin.sock")


Site: TypeAlias = Laptop | Container
"""The place of a mesh."""
