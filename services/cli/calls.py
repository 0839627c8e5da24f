"""gRPC calls to the mesh's services with the operator's certificate. They block: a command has one call to wait for."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from services.cli.config import Mesh, locate

TIMEOUT = 10.0
"""Seconds of an administrative call: a change rides out an election of etcd (4 s)."""
MAX_BYTES = 64 * 2**20
_RENEW_AFTER = 5 * 86_400.0
"""Seconds of the seven days that a person's certificate lives (libs.pki): before, it need not even be looked at."""
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_send_message_length", MAX_BYTES),
    # A process that hangs accepts connections and says nothing: the next one is tried, and a stream ends.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]


class Service:
    """One service over an open channel: `service("Get", kind="Tenant", name="acme")`."""

    def __init__(self, channel: Any, name: str) -> None:
        self._messages = import_module(f"weir.{name}.v1.{name}_pb2")
        self._stub = getattr(import_module(f"weir.{name}.v1.{name}_pb2_grpc"), f"{name.title()}ServiceStub")(channel)

    def __call__(self, method: str, /, *, timeout: float | None = TIMEOUT, wait: bool = False, **fields: Any) -> Any:
        """What it answers; of a streaming method, an iterator.

        :param wait: for a connection, and for as long as it takes.
        """
        request = getattr(self._messages, f"{method}Request")(**fields)
        return getattr(self._stub, method)(request, timeout=timeout, wait_for_ready=wait)


def target(addresses: Sequence[str]) -> str:
    """Processes as one gRPC target. gRPC takes several IPs at once, but no names; a name that nobody has is that of a
    process that does not run."""
    if len(addresses) == 1:
        return addresses[0]
    found = []
    for host, _, port in (address.rpartition(":") for address in addresses):
        with suppress(OSError):
            ip = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
            found.append(f"{ip}:{port}")
    return f"ipv4:{','.join(found)}" if found else addresses[0]


@contextmanager
def channel(name: str) -> Iterator[Any]:
    """A channel to a service: to the first of its processes with which a connection comes about. Once there is one,
    nothing is sent to another: a call whose answer is lost may have done its work.

    :raises WeirError: what the service answers; DEPENDENCY_UNAVAILABLE, naming it, when it cannot be reached.
    :raises NoMeshError: there is no mesh, or it has no such service.
    """
    where = locate()
    addresses = where.addresses(name)
    import grpc

    try:
        _renew(where)
        ca, cert, key = (Path(each).read_bytes() for each in where.tls)
    except OSError as error:
        raise _unavailable(
            f"the certificate of {where.operator} cannot be read: {error}; `weir operators add` makes one"
        ) from error
    options = [*_OPTIONS, ("grpc.ssl_target_name_override", f"{name}.weir.internal")]
    made = grpc.secure_channel(target(addresses), grpc.ssl_channel_credentials(ca, key, cert), options)
    try:
        yield made
    except grpc.RpcError as error:
        # Nobody answered; a service that refuses sends its reason along.
        if error.code() is grpc.StatusCode.UNAVAILABLE and not error.trailing_metadata():
            raise _unavailable(f"{name} does not answer at {' or '.join(addresses)}; see `weir status`") from error
        raise weir_error(error) from error
    finally:
        made.close()


@contextmanager
def service(name: str = "registry") -> Iterator[Service]:
    """A service for several calls; raises as `channel`."""
    with channel(name) as to:
        yield Service(to, name)


def ask(name: str, method: str, /, **fields: Any) -> Any:
    """One call of a service; raises as `channel`."""
    with service(name) as to:
        return to(method, **fields)


def _renew(where: Mesh) -> None:
    """Renews a certificate in good time where it was made: where the mesh's CA is."""
    cert = Path(where.tls.cert)
    made_here = where.tls == where.certificate_of(where.operator) and (where.pki / "ca.key").exists()
    if made_here and time.time() - cert.stat().st_mtime > _RENEW_AFTER:
        from libs.authority.identity import Operator
        from libs.pki import issue

        issue(where.pki, Operator(where.operator))


def weir_error(error: Any) -> Any:
    """What a failed call says: a WeirError."""
    from libs.errors import from_rpc_error

    return from_rpc_error(error)


def reason_of(error: Any) -> str:
    """The name of the reason of a failed call, whether it is mapped already or not."""
    known = error if hasattr(error, "reason") else weir_error(error) if hasattr(error, "trailing_metadata") else None
    return known.reason.name if known is not None else ""


def _unavailable(message: str) -> Exception:
    from libs.errors import Reason, WeirError

    return WeirError(Reason.DEPENDENCY_UNAVAILABLE, message)


def find(kind: str, name: str) -> Any:
    """A resource as it is; None when there is none."""
    try:
        return ask("registry", "Get", kind=kind, name=name).resource
    except Exception as error:
        if reason_of(error) != "NOT_FOUND":
            raise
        return None


def listing(registry: Service, kinds: Sequence[str] = (), selector: str = "", **more: Any) -> tuple[list[Any], int]:
    """All resources of these kinds, by message names, and the revision at which they are so."""
    found: list[Any] = []
    token = ""
    while True:
        page = registry("List", kinds=kinds, selector=selector, page_token=token, **more)
        found += page.resources
        token = page.next_page_token
        if not token:
            return found, page.revision


def snapshot(*plurals: str) -> Any:
    """What the registry knows of these kinds at one revision, as services see it (`RegistrySnapshot`); none: of all."""
    with service() as registry:
        return read(registry, plurals)


def read(registry: Service, plurals: Sequence[str] = (), *, newest: bool = False) -> Any:
    """Likewise.

    :param newest: with every change that was made before, not as one of the registry's replicas last heard.
    """
    from dataclasses import replace

    from libs.resources.codec import unpack
    from libs.resources.kinds import BY_MESSAGE, BY_PLURAL, attribute_of
    from libs.resources.snapshot import RegistrySnapshot

    if newest:
        # What a change would be is judged by the newest state, even of one that changes nothing.
        registry("Apply", change={"dry_run": True})
    resources, revision = listing(registry, [BY_PLURAL[each].name for each in plurals])
    found: dict[str, dict[Any, Any]] = {}
    for resource in resources:
        made = unpack(resource)
        found.setdefault(attribute_of(made), {})[BY_MESSAGE[type(made)].entry(resource.metadata.name)] = made
    return replace(RegistrySnapshot(revision=revision), **found)  # type: ignore[arg-type]
