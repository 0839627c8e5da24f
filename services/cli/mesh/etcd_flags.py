"""How etcd is started. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from libs.authority.stores import CLIENT_NAME
from libs.config import TlsFiles
from services.cli.mesh.sites import Site


def etcd_flags(
    name: str, site: Site, tls: TlsFiles, members: Mapping[str, str], *, client: int, peer: int, metrics: int
) -> Iterable[str]:
    """Its arguments. `members` are the peers' addresses by name. In containers with several members, each calls
    itself by the variable POD_NAME, which Kubernetes puts into a command."""
    own = "$(POD_NAME)" if site.members else name
    host = f"{own}.etcd" if site.members else site.host(name)
    listen = site.listen
    return (
        f"--name={own}",
        f"--data-dir={site.data(name)}",
        f"--listen-client-urls=https://{listen}:{client}",
        f"--advertise-client-urls=https://{host}:{client}",
        f"--cert-file={tls.cert}",
        f"--key-file={tls.key}",
        f"--trusted-ca-file={tls.ca}",
        "--client-cert-auth",
        f"--listen-peer-urls=https://{listen}:{peer}",
        f"--initial-advertise-peer-urls=https://{host}:{peer}",
        f"--initial-cluster={','.join(f'{each}=https://{at}' for each, at in members.items())}",
        f"--peer-cert-file={tls.cert}",
        f"--peer-key-file={tls.key}",
        f"--peer-trusted-ca-file={tls.ca}",
        "--peer-client-cert-auth",
        f"--listen-metrics-urls=http://{listen}:{metrics}",
        # History is only needed by a watcher that was away for a moment; it re-reads after more than this.
        "--auto-compaction-mode=revision",
        "--auto-compaction-retention=1000",
        # One apply is one transaction; see libs.changes.MAX_WRITES.
        "--max-txn-ops=4096",
        "--max-request-bytes=10485760",
        # Members are near one another; the defaults would cost a single one a second at each start.
        "--heartbeat-interval=100",
        f"--election-timeout={1000 if len(members) > 1 or site.members else 500}",
        # At "warn" it complains about every question for its health before it has a leader.
        "--log-level=error",
        "--logger=zap",
        "--enable-v2=false",
        # Only certificates of this name connect (libs.authority.stores.CLIENT_NAME), over gRPC: the HTTP gateway
        # would come with etcd's own certificate.
        f"--client-cert-allowed-hostname={CLIENT_NAME}",
        "--enable-grpc-gateway=false",
    )
