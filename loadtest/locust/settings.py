"""Where the load goes and as whom: out of locust's options, or of what `weir` knows of the mesh on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from libs.config import TlsFiles
from services.cli.config import Mesh, NoMeshError

TENANTS = ("acme", "globex")
"""Whose keys are used on a mesh of this machine: the two that are not narrowly limited."""
_ENV = {"xds_bootstrap": "GRPC_XDS_BOOTSTRAP", "internal_cert": "WEIR_CLIENT_CERT", "internal_key": "WEIR_CLIENT_KEY"}
"""By option: its variable in the state directory's `env`."""


class SettingsError(ValueError):
    """What was given does not suffice; the message names the option."""


class Internal(msgspec.Struct, frozen=True, kw_only=True):
    """An internal service that calls the gateway."""

    target: str
    tls: TlsFiles
    xds_bootstrap: str
    """Path; empty where the target is an address."""


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """Who rolls versions out, and how."""

    registry: str
    """Address, "host:port"."""
    tls: TlsFiles
    candidate: str
    """ "name@version"; empty: a version like the present one is registered under another number."""
    signing_key: str
    """Path of the key that signs it; empty: it is not signed."""
    steps: tuple[int, ...]
    """The canary's shares in percent."""
    step_seconds: float
    step_samples: int


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All that the sending process has to know."""

    edge: str
    """ "https://host:port"."""
    ca: str
    """Path of the CA of the edge's certificate; empty: the system's."""
    keys: dict[str, str]
    """API key by tenant."""
    model: str
    """What is asked for, and rolled out: an alias."""
    internal: Internal | None = None
    operator: Operator | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The edge's host and port."""
        parts = urlsplit(self.edge)
        return parts.hostname or "", parts.port or (443 if self.secure else 80)

    @property
    def secure(self) -> bool:
        """The edge speaks TLS."""
        return self.edge.startswith("https:")


def settings(options: Any, mesh: Callable[[], Mesh]) -> Settings:
    """Out of the parsed command line. With a host nothing is taken from this machine's mesh; without, all that was not
    given.

    :param mesh: `services.cli.config.locate`.
    :raises SettingsError: it does not suffice.
    """
    given = vars(options)
    try:
        known = {} if options.host else _of_mesh(mesh())
    except NoMeshError as error:
        raise SettingsError(f"--host: no URL is given, and there is {error}") from error

    def get(name: str) -> Any:
        return given[name] or known.get(name, "")

    keys = _keys(Path(options.keys)) if options.keys else known.get("keys", {})
    if urlsplit(get("host")).scheme not in ("http", "https"):
        raise SettingsError(f"--host: a URL of the edge is needed, such as https://weir.example, not {get('host')!r}")
    if not keys:
        raise SettingsError('--keys: a file of API keys by tenant is needed: {"acme": "wk_…"}')
    return Settings(
        edge=get("host").rstrip("/"),
        ca=get("ca"),
        keys=keys,
        model=options.model,
        internal=_internal(get),
        operator=_operator(get),
    )


def _internal(get: Callable[[str], Any]) -> Internal | None:
    if not get("internal_cert"):
        return None
    target, bootstrap = get("gateway"), get("xds_bootstrap")
    if target.startswith("xds:") and not bootstrap:
        raise SettingsError("--xds-bootstrap: a file is needed for --gateway over xds")
    return Internal(target=target, tls=_tls(get, "internal"), xds_bootstrap=bootstrap)


def _operator(get: Callable[[str], Any]) -> Operator | None:
    if not get("registry"):
        return None
    return Operator(
        registry=get("registry"),
        tls=_tls(get, "operator"),
        candidate=get("candidate"),
        signing_key=get("signing_key"),
        steps=_steps(get("rollout_steps")),
        step_seconds=get("rollout_step_seconds"),
        step_samples=get("rollout_samples"),
    )


def _tls(get: Callable[[str], Any], who: str) -> TlsFiles:
    files = TlsFiles(ca=get("mesh_ca") or get("ca"), cert=get(f"{who}_cert"), key=get(f"{who}_key"))
    if not (files.ca and files.cert and files.key):
        raise SettingsError(f"--{who}-cert, --{who}-key and --mesh-ca (or --ca) belong together")
    return files


def _steps(text: str) -> tuple[int, ...]:
    try:
        steps = tuple(int(each) for each in text.split(","))
    except ValueError:
        steps = ()
    if not steps or not all(0 < each < 100 for each in steps):
        raise SettingsError(f"--rollout-steps: whole percents below 100 are needed, such as 25,50, not {text!r}")
    return steps


def _keys(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError) as error:
        raise SettingsError(f"--keys: {path}: {error}") from error


def _of_mesh(mesh: Mesh) -> dict[str, Any]:
    """The same by option, as `weir up` left it.

    :raises NoMeshError: it says too little.
    """
    found: dict[str, Any] = {
        "host": mesh.edge_url,
        "ca": mesh.tls.ca,
        "keys": {tenant: mesh.key_of(tenant) for tenant in TENANTS},
        "registry": mesh.addresses("registry")[0],
        "operator_cert": mesh.tls.cert,
        "operator_key": mesh.tls.key,
        "signing_key": str(mesh.signing_key) if mesh.signing_key.exists() else "",
    }
    return found | {option: mesh.variable(name) for option, name in _ENV.items()}


def public(options: Any) -> dict[str, Any]:
    """What may be shown of the options: the load, and nothing of who sends it."""
    return {name: getattr(options, name) for name in ("model", "lengths", "context", "think")}
