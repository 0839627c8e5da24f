"""`weir certs`: who has a certificate of the development CA, until when, and new ones for a mesh that runs."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from typing import Annotated, Any

from services.cli.app import Option, Output
from services.cli.config import Mesh, Tls, locate
from services.cli.output import failed, print_found, short, zulu

_WAIT_SECONDS = 30.0
"""For all processes to show what they were given; servers look at each handshake, Envoy is told by the kernel."""
_CONNECT_SECONDS = 2.0


def show(output: Output = "table") -> None:
    """List the certificates: whose, until when, and whether the process that answers shows it."""
    mesh = locate()
    answering = _answering(mesh)
    rows = [
        {**row, "shown": _is_shown(row["serial"], answering[name], mesh.tls) if name in answering else None}
        for name, row in _on_disk(mesh.state / "pki").items()
    ]
    columns, wide = ("NAME", "OF", "UNTIL", "SERIAL", "SHOWN"), output == "wide"
    made = [(row["name"], row["of"], short(row["until"], wide=wide), row["serial"][-8:], row["shown"]) for row in rows]
    least, empty = ("SERIAL", "OF"), "there are no certificates"
    print_found(output, {"certificates": rows}, columns, made, empty=empty, least=least)


def rotate(
    ca: Annotated[bool, Option(help="Replace the CA as well; restarts etcd, which reads it once.")] = False,
) -> None:
    """Give everybody a new certificate and key, without a restart and without failing a request.

    With --ca in three steps, each of which everybody has taken up before the next: both CAs are trusted, the new one
    signs, the former one is forgotten. Whatever interrupts it, the same command goes on.
    """
    from libs.pki import adopt_next_ca, distrust_former_ca, reissue, trust_next_ca
    from services.cli.mesh.site import issue_root

    mesh = locate()
    folder = mesh.state / "pki"
    try:
        if ca:
            trust_next_ca(folder)
            _trust_taken_up(mesh)
            adopt_next_ca(folder)
        renewed = reissue(folder)
        issue_root(folder, mesh.state / "secrets")
        _wait_shown(mesh)
        if ca:
            _pause_for_clients()
            distrust_former_ca(folder)
            _trust_taken_up(mesh)
    except OSError as error:
        raise failed(str(error)) from error
    print(f"{len(renewed)} new certificates{' of a new CA' if ca else ''}; every process shows its own")


def _on_disk(folder: Path) -> dict[str, dict[str, Any]]:
    """The certificates by common name, those that are trusted first."""
    from cryptography import x509

    from libs.pki import EDGE, holder

    def row(name: str, of: str, certificate: x509.Certificate) -> dict[str, Any]:
        until, serial = zulu(certificate.not_valid_after_utc), f"{certificate.serial_number:040x}"
        return {"name": name, "of": of, "until": until, "serial": serial}

    found: dict[str, dict[str, Any]] = {}
    trusted = x509.load_pem_x509_certificates((folder / "ca.pem").read_bytes())
    for number, each in enumerate(trusted):
        name = f"ca-{number}" if number else "ca"
        found[name] = row(name, "everybody's trust", each)
    for path in sorted(folder.glob("*.pem")):
        if path.stem != "ca":
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            of = "the public" if path.stem == EDGE else holder(certificate).spiffe
            found[path.stem] = row(path.stem, of, certificate)
    return found


def _answering(mesh: Mesh) -> dict[str, str]:
    """Addresses where certificates are shown to operators, by common name: not etcd's, which turns them away. It reads
    its own at each handshake. Prometheus and Alertmanager have none."""
    from services.cli.mesh.monitoring import SERVICES as MONITORING

    silent = {"envoy", "etcd", *MONITORING}
    found = {name: address for name, service, address in mesh.processes if service not in silent}
    return {**found, "edge": mesh.edge_url.removeprefix("https://")}


def _is_shown(serial: str, address: str, tls: Tls) -> bool:
    """Whether the process at "host:port" shows the certificate with this serial number."""
    from cryptography import x509

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Compared with the file, which says more than a name.
    context.check_hostname = False
    context.load_verify_locations(tls.ca)
    context.load_cert_chain(tls.cert, tls.key)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    try:
        with (
            socket.create_connection((host, int(port)), _CONNECT_SECONDS) as plain,
            context.wrap_socket(plain) as secured,
        ):
            der = secured.getpeercert(binary_form=True)
    except OSError:
        return False
    return der is not None and f"{x509.load_der_x509_certificate(der).serial_number:040x}" == serial


def _wait_shown(mesh: Mesh) -> None:
    """Until everybody shows what is on the disk.

    :raises SystemExit: not in time.
    """
    on_disk, waiting = _on_disk(mesh.state / "pki"), _answering(mesh)
    deadline = time.monotonic() + _WAIT_SECONDS
    while late := [name for name in waiting if not _is_shown(on_disk[name]["serial"], waiting[name], mesh.tls)]:
        if time.monotonic() > deadline:
            complaint = "still shows a former certificate, or does not answer; `weir certs rotate` goes on when it does"
            raise failed(f"{', '.join(late)} {complaint}")
        time.sleep(0.1)


def _trust_taken_up(mesh: Mesh) -> None:
    """What `ca.pem` says now binds everybody: others look at each handshake, etcd only when it starts."""
    for name in [name for name, service, _ in mesh.processes if service == "etcd"]:
        _restart(mesh.state, name)
    _pause_for_clients()


def _restart(state: Path, name: str) -> None:
    from libs.supervisor import control

    try:
        if not control.restart(state, name, timeout=_WAIT_SECONDS)["ready"]:
            raise failed(f"{name} did not come back; see `weir logs {name}`")
    except control.NotRunning:
        raise failed(f"no mesh runs in {state}; `weir up` starts it with what is there") from None


def _pause_for_clients() -> None:
    """gRPC's connections to the control plane follow their files by the clock, and cannot be asked."""
    from libs.xds_bootstrap import REFRESH_SECONDS

    time.sleep(REFRESH_SECONDS + 1)


COMMANDS = {"show": show, "rotate": rotate}
