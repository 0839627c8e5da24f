"""Where the mesh is, for operators' commands: the state directory that `weir up` writes. The only reader of it here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from libs.config import TlsFiles

_ROOT = Path(__file__).resolve().parents[2]
DEFAULT_STATE = ".weir"


class NoMeshError(Exception):
    """No mesh is to be found, or its description cannot be read; the message says where it was looked for."""


class _Service(msgspec.Struct, frozen=True):
    service: str
    address: str


class _Tls(msgspec.Struct, frozen=True):
    ca: str
    cli_cert: str
    cli_key: str


class _MeshFile(msgspec.Struct, frozen=True):
    """The part of mesh.json that matters here; the rest is for others."""

    services: dict[str, _Service]
    edge_url: str
    tls: _Tls
    edge_tls_url: str = ""
    blobs: str = ""


class Mesh:
    """A mesh as described in its state directory."""

    def __init__(self, state: Path, file: _MeshFile) -> None:
        self.state = state
        """The state directory."""
        self.edge_url = file.edge_url
        """Plain HTTP edge, "http://127.0.0.1:18000"."""
        self.edge_tls_url = file.edge_tls_url
        """TLS edge; empty when there is none."""
        self.tls = TlsFiles(ca=file.tls.ca, cert=file.tls.cli_cert, key=file.tls.cli_key)
        """The operator's certificate."""
        self.blobs = file.blobs
        """The address of the blob store of model files, as libs.artifacts.open_store knows it; empty: there is none."""
        self.signing_key = state / "secrets" / "model-signing.key"
        """The development key that signs model versions; it need not exist."""
        self._services = file.services

    def address(self, service: str) -> str:
        """Where a service is, "host:port": its first process.

        :raises NoMeshError: the mesh has no such service.
        """
        return self.addresses(service)[0]

    def addresses(self, service: str) -> tuple[str, ...]:
        """Where all processes of a service are, in the order of their names; at least one.

        :raises NoMeshError: the mesh has no such service.
        """
        found = tuple(
            self._services[name].address for name in sorted(self._services) if self._services[name].service == service
        )
        if not found:
            raise NoMeshError(f"the mesh in {self.state} has no {service}")
        return found

    def key_of(self, tenant: str) -> str:
        """The development key of a tenant, out of `$STATE/env`.

        :raises NoMeshError: there is none.
        """
        variable = "WEIR_ADMIN_KEY" if tenant == "admin" else f"WEIR_KEY_{tenant.upper().replace('-', '_')}"
        key = _exports(self.state / "env").get(variable, "")
        if not key:
            raise NoMeshError(f"no key of {tenant!r} in {self.state / 'env'}; give one with --key")
        return key


def locate(environ: Mapping[str, str] = os.environ) -> Mesh:
    """The mesh that WEIR_STATE_DIR (default .weir, in the checkout) describes.

    :raises NoMeshError: there is none.
    """
    given = Path(environ.get("WEIR_STATE_DIR", "") or DEFAULT_STATE)
    state = given if given.is_absolute() else _ROOT / given
    path = state / "mesh.json"
    try:
        return Mesh(state, msgspec.json.decode(path.read_bytes(), type=_MeshFile))
    except FileNotFoundError:
        raise NoMeshError(f"no mesh in {state}: start one with `weir up`, or set WEIR_STATE_DIR") from None
    except (OSError, msgspec.DecodeError) as error:
        raise NoMeshError(f"{path}: {error}") from error


def _exports(path: Path) -> dict[str, str]:
    """Variables of a file of `export NAME=VALUE` lines."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        for word in words[1:] if words[:1] == ["export"] else words:
            name, equals, value = word.partition("=")
            if equals:
                found[name] = value
    return found
