"""Addresses that processes tell one another. They are of IPs: Envoy refuses every endpoint of a service for one that is
called by a name."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address


def host_of(host: str) -> str:
    """An IP in its usual spelling, without brackets.

    :raises ValueError: it is a name, or one that nobody can connect to: any address, multicast, of some link alone.
    """
    found = ip_address(host.strip("[]"))
    if found.is_unspecified or found.is_multicast or (isinstance(found, IPv6Address) and found.scope_id):
        raise ValueError(f"{host!r} is no address that others can connect to")
    return str(found)


def split(address: str) -> tuple[str, int]:
    """Host, as by `host_of`, and port of "127.0.0.1:7700" or "[::1]:7700".

    :raises ValueError: it is none.
    """
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError(f"{address!r} has no port")
    return host_of(host), int(port)


def join(host: str, port: int) -> str:
    """The address of a host, which may be a name, and a port."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


_ANYWHERE = ("192.0.2.1:9", "[2001:db8::1]:9")
"""Addresses that nobody has (RFC 5737, RFC 3849): the way there is the default route."""


def own_host(towards: Iterable[str] = ()) -> str:
    """The IP of this machine's interface that leads to the first of these addresses ("host:port", the host may be a
    name) that there is a way to, else to the default route. Nothing is sent.

    :raises OSError: there is no way anywhere.
    """
    fault: OSError | None = None
    for address in (*towards, *_ANYWHERE):
        host, _, port = address.rpartition(":")
        try:
            for family, kind, *_, target in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM):
                with socket.socket(family, kind) as probe:
                    probe.connect(target)
                    return host_of(probe.getsockname()[0])
        except OSError as error:
            fault = fault or error
    raise OSError(f"no interface leads to {', '.join(towards) or 'the default route'}: {fault}")
