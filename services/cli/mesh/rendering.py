"""`weir render` and `weir init`: a mesh of containers told as JSON, and its one-time steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from services.cli.app import Option, UsageError
from services.cli.output import failed, print_json

Person = Annotated[str, Option(help="The mesh's first owner.")]
State = Annotated[str, Option(help="A folder that is kept: the CA and secrets, or keys of models and tenants.")]


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """The options that describe a mesh of containers."""

    profile: Annotated[str, Option(help="A file in deploy/profiles.")] = "demo"
    overrides: Annotated[Sequence[str], Option("--set", help="NAME.FIELD=VALUE, as for `weir up`.")] = ()
    plain: Annotated[bool, Option(help="With a port of the edge that speaks no TLS, for development.")] = False
    blobs: Annotated[str, Option(help="Address of the blob store; a volume of all who use it when left out.")] = ""
    members: Annotated[str, Option(help="Names of etcd's members, with commas; one process when left out.")] = ""
    domains: Annotated[str, Option(help="What hosts' names may be followed by, with commas.")] = ""
    public: Annotated[str, Option(help="Names of the edge for the public, with commas; localhost when left out.")] = ""
    operator: Person = "operator"

    def described(self) -> dict[str, Any]:
        """The mesh as `weir render` prints it. Raises UsageError."""
        from services.cli.mesh.sites import Container

        lists = {"members": self.members, "domains": self.domains, "public": self.public}
        given: dict[str, Any] = {name: tuple(text.split(",")) for name, text in lists.items() if text}
        if self.blobs:
            given["blobs"] = self.blobs
        site = Container(plain_edge=self.plain, operator=self.operator, **given)
        return described(site, self.profile, tuple(self.overrides))


def render(mesh: Mesh) -> None:
    """Print what each process of a mesh in containers runs, reads and calls, as JSON."""
    print_json(mesh.described())


def files(
    mesh: Mesh, out: Annotated[str, Option(help="A folder; each process gets one of its own in it.")], state: State
) -> None:
    """Write what each process in a container sees as /etc/weir: settings, key, secrets.

    Keys and secrets are made where there are none yet, and certificates renewed in the last third of their life.
    """
    from services.cli.mesh import initial

    try:
        written = initial.write_files(mesh.described(), Path(out), Path(state))
    except OSError as error:
        raise failed(str(error)) from error
    print(f"{out}: files of {', '.join(written)}")


def seed(
    registry: Annotated[str, Option(help="Where it is, HOST:PORT.")],
    ca: Annotated[str, Option(help="The mesh's CA, PEM.")],
    cert: Annotated[str, Option(help="The certificate of the first owner, PEM.")],
    key: Annotated[str, Option(help="Its key, PEM.")],
    blobs: Annotated[str, Option(help="Address of the blob store that takes the demo models.")],
    state: State,
    operator: Person = "operator",
) -> None:
    """Fill a fresh registry with what deploy/seed holds, wait for the models, print keys."""
    from libs.config import TlsFiles
    from services.cli.mesh import initial
    from services.cli.mesh.loading import LoadError
    from services.cli.mesh.report import KEY_VARIABLES
    from services.cli.mesh.seed import SeedError

    tls = TlsFiles(ca=ca, cert=cert, key=key)
    try:
        seeded = initial.plant(registry, tls, operator=operator, blobs=blobs, state=Path(state))
    except (OSError, SeedError, LoadError) as error:
        raise failed(str(error)) from error
    print(f"models: {', '.join(seeded.models)}")
    for name, variable in KEY_VARIABLES.items():
        if name in seeded.keys:
            print(f"{variable}={seeded.keys[name]}")


def described(site: Any, profile: str, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """The mesh as `weir render` prints it. Raises UsageError."""
    from services.cli.mesh import up
    from services.cli.mesh.render import describe
    from services.cli.mesh.topology import TopologyError

    try:
        plan = up.make_plan(site, up.Options(profile=profile, overrides=overrides))
    except TopologyError as error:
        raise UsageError(str(error)) from error
    return describe(plan, site, asked=(f"--profile={profile}", *(f"--set={each}" for each in overrides), *_words(site)))


def _words(site: Any) -> list[str]:
    """The options that lead to this site."""
    usual = type(site)()
    told = ["--plain"] if site.plain_edge else []
    for name in ("blobs", "members", "domains", "public", "operator"):
        value = getattr(site, name)
        if value != getattr(usual, name):
            told.append(f"--{name}={value if isinstance(value, str) else ','.join(value)}")
    return told


INIT = {"files": files, "seed": seed}
