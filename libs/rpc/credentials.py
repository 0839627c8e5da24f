"""mTLS credentials from files."""

from __future__ import annotations

from pathlib import Path

import grpc

from libs.config import TlsFiles


def _read(tls: TlsFiles) -> tuple[bytes, bytes, bytes]:
    return Path(tls.ca).read_bytes(), Path(tls.key).read_bytes(), Path(tls.cert).read_bytes()


def server_credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that present this process's certificate and demand one of the mesh's CA from every peer."""
    ca, key, cert = _read(tls)
    return grpc.ssl_server_credentials([(key, cert)], root_certificates=ca, require_client_auth=True)


def channel_credentials(tls: TlsFiles) -> grpc.ChannelCredentials:
    """Credentials that present this process's certificate and accept servers of the mesh's CA."""
    ca, key, cert = _read(tls)
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)
