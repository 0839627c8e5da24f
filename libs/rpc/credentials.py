"""mTLS credentials from files, which are read anew when they have changed.

Whoever renews certificates replaces the files; no process needs to be told. Connections go on as they were opened.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from pathlib import Path
from typing import NamedTuple

import grpc

from libs.config import TlsFiles

_log = logging.getLogger(__name__)


class Material(NamedTuple):
    """What the files hold, PEM."""

    ca: bytes
    key: bytes
    cert: bytes


class TlsSource:
    """The TLS files of a process, as they are now. For any thread."""

    def __init__(self, tls: TlsFiles) -> None:
        """:raises OSError: a file cannot be read; ssl.SSLError, which is one, when they do not belong together."""
        self._paths = (tls.ca, tls.key, tls.cert)
        self._lock = threading.Lock()
        self._seen = self._stamps()
        self._material = self._read()

    def current(self) -> Material:
        """What the files hold; the same object until they change. It costs three looks at the folder (about 7 µs).

        While they do not fit, such as between the two renames that renew a certificate, what they held before.
        """
        with self._lock:
            try:
                stamps = self._stamps()
                if stamps != self._seen:
                    # Before the look, so that what cannot be used is not read again at each call.
                    self._seen = stamps
                    self._material = self._read()
            except OSError as error:
                _log.warning("tls_files_unusable: %s", error)
            return self._material

    def _stamps(self) -> list[tuple[int, int, int]]:
        return [(found.st_ino, found.st_mtime_ns, found.st_size) for found in map(os.stat, self._paths)]

    def _read(self) -> Material:
        ca, key, cert = self._paths
        material = Material(*(Path(path).read_bytes() for path in self._paths))
        # Refuses a key of another certificate and a file without one.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(ca)
        context.load_cert_chain(cert, key)
        return material


def server_credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that present this process's certificate and demand one of the mesh's CA from every peer.

    :raises OSError: as `TlsSource`.
    """
    source = TlsSource(tls)
    served = source.current()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        """At each handshake, in a thread of gRPC's: None keeps what was presented before."""
        nonlocal served
        latest = source.current()
        if latest is served:
            return None
        served = latest
        return _configuration(latest)

    return grpc.dynamic_ssl_server_credentials(_configuration(served), changed, require_client_authentication=True)


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.cert)], root_certificates=material.ca)


def channel_credentials(material: Material) -> grpc.ChannelCredentials:
    """Credentials that present this process's certificate and accept servers of the mesh's CA."""
    return grpc.ssl_channel_credentials(material.ca, material.key, material.cert)
