"""What this process's certificate says of it: peers believe that, so the configuration must say the same."""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from typing import Any

from libs.authority.identity import Identity
from libs.config import ConfigError, ServiceSettings, TlsFiles
from libs.rpc.credentials import TlsSource


def check_certificate(settings: ServiceSettings) -> None:
    """Refuses a configuration that claims another service, instance, zone, pool or region than the certificate.

    :raises ConfigError: so it is; or a file cannot be read, or peers would not accept the certificate.
    """
    if settings.tls is None:
        return
    try:
        shown = shown_to_peers(settings.tls)
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls: {settings.tls.cert} cannot be used: {error}") from error
    uris = [value for kind, value in shown["subjectAltName"] if kind == "URI"]
    identity = Identity.parse(uris[0]) if len(uris) == 1 else None
    if identity is None:
        raise ConfigError(f"tls: {settings.tls.cert} is of no service: {', '.join(uris) or 'it has no SPIFFE id'}")
    claimed = {field: getattr(settings, field, "") for field in ("service", "instance", "zone", "pool", "region")}
    if field := identity.differs(**claimed):
        raise ConfigError(
            f"tls: {settings.tls.cert} is of {field} {getattr(identity, field)!r}, "
            f"this process is configured as {claimed[field]!r}"
        )


def watch_expiry(tls: TlsFiles) -> None:
    """Tells Prometheus how long the certificate is valid, whichever it is at the time, and of how long a life."""
    from prometheus_client import Gauge

    source = TlsSource(tls)
    known: list[Any] = [None, 0.0, 0.0]

    def bounds() -> tuple[float, float]:
        if (latest := source.current()) is not known[0]:
            with suppress(OSError):  # replaced in between: the next scrape sees it
                shown = shown_to_peers(tls)
                known[:] = latest, *(ssl.cert_time_to_seconds(shown[each]) for each in ("notBefore", "notAfter"))
        return known[1], known[2]

    def life() -> float:
        began, ends = bounds()
        return ends - began

    left = Gauge("weir_certificate_expiry_seconds", "Until this process's certificate ends.")
    left.set_function(lambda: bounds()[1] - time.time())
    Gauge("weir_certificate_life_seconds", "From its beginning to its end.").set_function(life)


def shown_to_peers(tls: TlsFiles) -> dict[str, Any]:
    """The certificate as a peer sees it (`ssl.SSLSocket.getpeercert`): by a handshake with ourselves, in memory.

    :raises OSError: a file cannot be read; ssl.SSLError, which is one, where a peer would refuse the certificate.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    for context in (server, client):
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(tls.ca)
        context.load_cert_chain(tls.cert, tls.key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller, answerer = client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)
    for side in (caller, answerer, caller, answerer):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return dict(answerer.getpeercert() or {})
