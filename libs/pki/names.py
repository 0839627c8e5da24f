"""Which names certificates carry beside the SPIFFE id."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509

from libs.authority.identity import Identity, Operator, dns_name
from libs.authority.stores import CLIENT_NAME, DOOR, connects

EDGE = "edge"
"""The certificate that the public listener shows: a server certificate for localhost, without an id."""

BY_ADDRESS = frozenset({EDGE, "controlplane"})
"""Services whose callers verify the address that they dial: strangers, and gRPC's xDS clients, whose bootstrap has no
place for another name. etcd's members do too, where there are several. All other callers ask for the service's name,
which is why no other leaf has an address."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""What those are dialled by on one machine."""

Hosts = Mapping[str, Sequence[str]]
"""Names and IPs that certificates carry beside their own, by common name."""


def dns_names(identity: Identity) -> list[str]:
    """The names of a workload's own certificate, whatever it is dialled by."""
    return [
        dns_name(identity.service),
        *([CLIENT_NAME] if connects(identity) else []),
        # To those that do not connect it is etcd.
        *([dns_name("etcd")] if identity.service == DOOR else []),
    ]


def alternative_names(identity: Identity | Operator, hosts: Sequence[str] | None = None) -> x509.SubjectAlternativeName:
    """What peers verify.

    :param hosts: names and IPs that callers dial and verify; None: those of the services BY_ADDRESS on one machine.
    """
    names: list[x509.GeneralName] = []
    if isinstance(identity, Identity):
        if hosts is None:
            hosts = LOOPBACK if identity.service in BY_ADDRESS else ()
        first, *others = dns_names(identity)
        names += map(_general, (first, *hosts, *others))
    if identity != Identity(EDGE):
        names.append(x509.UniformResourceIdentifier(identity.spiffe))
    return x509.SubjectAlternativeName(names)


def names_in(path: Path) -> x509.SubjectAlternativeName:
    """What peers verify of a certificate that there is."""
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
