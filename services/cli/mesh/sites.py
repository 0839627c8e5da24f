"""Who is where, and which file lies where: on a laptop, all on one address and in one folder, or in containers, each
with a host name, a certificate and a folder of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from libs.authority.identity import Operator, etcd_user
from libs.authority.stores import ROOT_USER
from libs.config import AUTO, TlsFiles
from libs.pki import EDGE, LOOPBACK

PORT_BASE = 18000
"""Where ports begin unless told otherwise; in containers always."""

FOLDER = Path("/etc/weir")
"""Where a container has its settings, keys and secrets, read-only."""


class Site(Protocol):
    """What a plan asks about the place of a mesh. Paths and addresses are as the processes see them."""

    @property
    def port_base(self) -> int:
        """What the topology's offsets are added to."""

    @property
    def operator(self) -> str:
        """Its first owner, and whose certificate `weir` shows."""

    @property
    def blobs(self) -> str:
        """Address of the blob store of model files, as libs.artifacts.open_store knows it."""

    @property
    def plain_edge(self) -> bool:
        """Whether the edge also has a port without TLS."""

    @property
    def listen(self) -> str:
        """The address that everybody listens on."""

    @property
    def advertise(self) -> str:
        """What every process says of its own address: `ServiceSettings.advertise`."""

    @property
    def root(self) -> Path:
        """What ${root} means: the folder of `deploy` and `models`, or where an image has models of its own."""

    @property
    def state(self) -> Path:
        """What processes of one machine share."""

    @property
    def etcd(self) -> str:
        """The etcd program."""

    @property
    def envoy(self) -> str:
        """The Envoy program."""

    @property
    def members(self) -> tuple[str, ...]:
        """The members of etcd, where each has a name of its own; empty: the one process of the topology."""

    def host(self, name: str) -> str:
        """Under which host others reach a process."""

    def names(self, service: str, name: str) -> tuple[str, ...]:
        """Hosts and IPs that the certificate of a process carries because callers verify the address that they dial."""

    def python(self, wanted: str) -> str:
        """The interpreter of a service; `wanted` is a profile's own, relative to the checkout, or empty.

        :raises ValueError: there is no such thing here.
        """

    def data(self, name: str) -> Path:
        """A process's own folder."""

    def config(self, name: str) -> Path:
        """A service's settings, or Envoy's bootstrap."""

    def secret(self, name: str) -> Path:
        """A secret's file."""

    def tls(self, name: str) -> TlsFiles:
        """TLS files by common name, where whoever shows that certificate finds them."""

    def admin_socket(self, name: str) -> str:
        """Path of the socket of Envoy's admin interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laptop:
    """A mesh on one machine, for one user, on loopback."""

    root: Path
    """The checkout, or the folder of an installed wheel that stands for it."""
    state: Path
    """The state directory, absolute."""
    port_base: int
    interpreter: str
    """The Python that runs the services."""
    etcd: str
    envoy: str
    operator: str = "operator"
    blob_store: str = ""
    """Address of a blob store of model files elsewhere; empty: a folder of the state directory."""
    plain_edge: bool = True
    listen: str = "127.0.0.1"
    advertise: str = ""
    members: tuple[str, ...] = ()

    @property
    def blobs(self) -> str:
        """See `Site`."""
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
        return TlsFiles(
            ca=str(self.pki / "ca.pem"),
            cert=str(self.secrets / f"{ROOT_USER}.pem"),
            key=str(self.secrets / f"{ROOT_USER}.key"),
        )

    @property
    def operator_tls(self) -> TlsFiles:
        """The operator's TLS files."""
        return self.tls(etcd_user(Operator(self.operator)))

    @property
    def client_bootstrap(self) -> Path:
        """The xDS bootstrap of the workload demo-client."""
        return self.state / "config" / "demo-client.xds.json"

    def host(self, name: str) -> str:
        """See `Site`."""
        return self.listen

    def names(self, service: str, name: str) -> tuple[str, ...]:
        """See `Site`."""
        return LOOPBACK if service in (EDGE, "controlplane") else ()

    def python(self, wanted: str) -> str:
        """See `Site`."""
        return str(self.root / wanted) if wanted else self.interpreter

    def data(self, name: str) -> Path:
        """See `Site`."""
        return self.state / "data" / name

    def config(self, name: str) -> Path:
        """See `Site`."""
        return self.state / "config" / f"{name}.json"

    def secret(self, name: str) -> Path:
        """See `Site`."""
        return self.secrets / name

    def tls(self, name: str) -> TlsFiles:
        """See `Site`."""
        return TlsFiles(
            ca=str(self.pki / "ca.pem"), cert=str(self.pki / f"{name}.pem"), key=str(self.pki / f"{name}.key")
        )

    def admin_socket(self, name: str) -> str:
        """See `Site`; relative to the process's folder: the state directory may have a longer path than sockets may."""
        return "admin.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A mesh of containers: a process is reached under its name, has its own key and no other, and writes nowhere but
    below /var/lib/weir (and /tmp)."""

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
    root: Path = Path("/usr/share/weir")
    state: Path = Path("/var/lib/weir")

    def host(self, name: str) -> str:
        """See `Site`; a member of etcd is reached under the name of their service."""
        return f"{name}.etcd" if name in self.members else name

    def names(self, service: str, name: str) -> tuple[str, ...]:
        """See `Site`."""
        if service not in (EDGE, "controlplane", "etcd"):
            return ()
        hosts = ("envoy",) if service == EDGE else (name, *map(self.host, self.members if service == "etcd" else ()))
        return (
            *(self.public if service == EDGE else ()),
            *hosts,
            *(f"{host}.{domain}" for host in hosts for domain in self.domains),
        )

    def python(self, wanted: str) -> str:
        """See `Site`."""
        if wanted:
            raise ValueError("process.python is for a mesh on one machine; in a container it is the image's")
        return "python"

    def data(self, name: str) -> Path:
        """See `Site`."""
        return self.state / "data"

    def config(self, name: str) -> Path:
        """See `Site`."""
        return FOLDER / "config.json"

    def secret(self, name: str) -> Path:
        """See `Site`."""
        return FOLDER / "secrets" / name

    def tls(self, name: str) -> TlsFiles:
        """See `Site`; the names of the files are those of Kubernetes's TLS secrets."""
        folder = FOLDER / (EDGE if name == EDGE else "tls")
        return TlsFiles(ca=str(folder / "ca.crt"), cert=str(folder / "tls.crt"), key=str(folder / "tls.key"))

    def admin_socket(self, name: str) -> str:
        """See `Site`."""
        return str(self.state / "admin.sock")
