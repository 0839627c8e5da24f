"""The one-time steps of a mesh in containers: everybody's files, and a registry that is not empty."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from libs.authority.identity import Identity, Operator
from libs.config import TlsFiles
from libs.pki import CertificateFiles, issue_all
from libs.shipped import ROOT
from services.cli.mesh import loading
from services.cli.mesh import seed as seeding
from services.cli.mesh.site import make_secret, read_json, write_secret
from services.cli.mesh.sites import FOLDER


def write_files(mesh: Mapping[str, Any], out: Path, state: Path) -> list[str]:
    """Writes a folder per process, job and person of a described mesh (services.cli.mesh.render), with what that one
    sees as /etc/weir and nothing of anybody else's. The CA and the secrets are in `state`, which nobody else needs.

    Returns their names. Raises OSError.
    """
    owners = {**mesh["processes"], **mesh["jobs"], "operator": mesh["operator"], "client": mesh["client"]}
    owners = {name: each for name, each in owners.items() if each.get("files") or each["certificates"]}
    wanted = {each["name"]: each for owner in owners.values() for each in owner["certificates"]}
    hosts = {name: each["hosts"] for name, each in wanted.items()}
    issued = issue_all(state / "pki", map(_identity, wanted.values()), hosts=hosts)
    secrets = {name for owner in owners.values() for name in owner.get("secrets", {})}
    (state / "secrets").mkdir(parents=True, exist_ok=True, mode=0o700)
    held = {name: make_secret(state / "secrets" / name) for name in secrets}
    for name, owner in owners.items():
        folder = out / name
        for path, text in owner.get("files", {}).items():
            _write(folder, path, text)
        for each in owner["certificates"]:
            _write_certificate(folder, each, issued[each["name"]])
        for secret, path in owner.get("secrets", {}).items():
            _write(folder, path, held[secret])
    return list(owners)


def plant(registry: str, tls: TlsFiles, *, operator: str, blobs: str, state: Path) -> seeding.Seeded:
    """Seeds a registry; returns when workers have every model that generates: a cluster may have no predictors. Keys
    that were made before stay as they are.

    Raises SeedError, LoadError, OSError.
    """
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    known = state / "keys.json"
    key, keys = state / "model-signing.key", read_json(known)
    planted = seeding.plant(ROOT, address=registry, tls=tls, operator=operator, keys=keys, blobs=blobs, signing_key=key)
    seeded = asyncio.run(planted)
    write_secret(known, json.dumps(seeded.keys, indent=2) + "\n")
    asyncio.run(loading.wait_loaded(seeded.models, address=registry, tls=tls))
    return seeded


def _identity(certificate: Mapping[str, Any]) -> Identity | Operator:
    uri = certificate["uri"]
    return Identity.parse(uri) or Operator.parse(uri) or Identity(certificate["name"])


def _write_certificate(folder: Path, certificate: Mapping[str, Any], issued: CertificateFiles) -> None:
    # The key last: whoever watches the folder looks at all three when the last one has changed.
    for part in ("ca", "cert", "key"):
        _write(folder, certificate[part], Path(getattr(issued, part)).read_text(encoding="ascii"))


def _write(folder: Path, path: str, text: str) -> None:
    """Writes a file that a container sees at `path`, unless it is there as it shall be."""
    place = folder / Path(path).relative_to(FOLDER)
    if place.exists() and place.read_text(encoding="utf-8") == text:
        return
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_secret(place, text)
