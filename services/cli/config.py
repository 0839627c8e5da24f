"""Where the mesh is, for operators' commands: the state directory that `weir up` writes. The only reader of it here."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from libs.authority.identity import Operator, etcd_user
from libs.shipped import INSTALLED, ROOT


class NoMeshError(Exception):
    """No mesh is to be found, or its description cannot be read; the message says where it was looked for."""


class Tls(NamedTuple):
    """Paths of PEM files: the mesh's CA, the operator's certificate and its key."""

    ca: str
    cert: str
    key: str


class Mesh:
    """A mesh as described in its state directory."""

    def __init__(self, state: Path, file: Mapping[str, Any]) -> None:
        """:param file: the content of mesh.json; what is not used here is for others.

        :raises KeyError, TypeError: it says too little.
        """
        self.state = state
        """The state directory."""
        self.edge_url: str = file["edge_url"]
        """The edge, "https://localhost:18001"."""
        self.operator: str = file["operator"]
        """Who calls."""
        self.tls = Tls(*(file["tls"][name] for name in ("ca", "cert", "key")))
        """The operator's certificate."""
        self.blobs: str = file.get("blobs", "")
        """The address of the blob store of model files, as libs.artifacts.open_store knows it; empty: there is none."""
        self.pki = state / "pki"
        """The folder of certificates."""
        self.signing_key = state / "secrets" / "model-signing.key"
        """The development key that signs model versions; it need not exist."""
        self.processes: list[tuple[str, str, str]] = [
            (name, each["service"], each["address"]) for name, each in sorted(file["services"].items())
        ]
        """Name, service and address, "host:port", of each process."""
        self.metrics: list[tuple[str, str, str, str]] = [
            (name, each["service"], each.get("zone", ""), each["metrics"])
            for name, each in sorted(file["services"].items())
            if each.get("metrics")
        ]
        """Name, service, zone and where the metrics are ("host:port", or with a path) of each process that has some."""

    def certificate_of(self, operator: str) -> Tls:
        """Where the certificate of a person is, if it was made on this machine. Raises ValueError for no name."""
        own = self.pki / etcd_user(Operator(operator))
        return Tls(self.tls.ca, f"{own}.pem", f"{own}.key")

    def addresses(self, service: str) -> tuple[str, ...]:
        """Where all processes of a service are, in the order of their names; at least one.

        :raises NoMeshError: the mesh has no such service.
        """
        found = tuple(address for _, each, address in self.processes if each == service)
        if not found:
            raise NoMeshError(f"the mesh in {self.state} has no {service}")
        return found

    def key_of(self, tenant: str) -> str:
        """The development key of a tenant, out of `$STATE/env`.

        :raises NoMeshError: there is none.
        """
        name = "WEIR_ADMIN_KEY" if tenant == "admin" else f"WEIR_KEY_{tenant.upper().replace('-', '_')}"
        if key := self.variable(name):
            return key
        raise NoMeshError(f"no key of {tenant!r} in {self.state / 'env'}; give one with --key")

    def variable(self, name: str) -> str:
        """A variable of `$STATE/env`; empty when it is not there."""
        path = self.state / "env"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        for line in lines:
            if line.startswith(f"export {name}="):
                return shlex.split(line)[1].partition("=")[2]
        return ""


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the mesh on this machine: WEIR_STATE_DIR, or `.weir` in the checkout, or, installed from a wheel, a
    folder of the user's."""
    if given := environ.get("WEIR_STATE_DIR", ""):
        return Path.cwd() / given if INSTALLED else ROOT / given
    if not INSTALLED:
        return ROOT / ".weir"
    return Path(environ.get("XDG_STATE_HOME", "") or Path.home() / ".local" / "state") / "weir"


def locate(environ: Mapping[str, str] = os.environ) -> Mesh:
    """The mesh that `state_dir` describes.

    :raises NoMeshError: there is none.
    """
    state = state_dir(environ)
    path = state / "mesh.json"
    try:
        mesh = Mesh(state, _over(json.loads(path.read_bytes()), environ))
    except FileNotFoundError:
        raise NoMeshError(f"no mesh in {state}: start one with `weir up`, or set WEIR_STATE_DIR") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoMeshError(f"{path} cannot be used: {error!r}; `weir down` and `weir up` write it anew") from error
    if (other := environ.get("WEIR_OPERATOR", "")) and other != mesh.operator:
        try:
            mesh.operator, mesh.tls = other, mesh.certificate_of(other)
        except ValueError as error:
            raise NoMeshError(f"{other!r} is no name of an operator: {error}") from error
    return mesh


def _over(file: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """The description of a mesh with what the environment says instead, named as services' settings are."""
    said = {part: environ.get(f"WEIR_TLS__{part.upper()}", "") for part in ("ca", "cert", "key")}
    tls = {**file["tls"], **{part: path for part, path in said.items() if path}}
    return {**file, "tls": tls, "blobs": environ.get("WEIR_BLOBS", "") or file.get("blobs", "")}
