"""`weir render`: the mesh as containers would run it, as JSON; what compose and Kubernetes files are made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from services.cli.app import Option, UsageError
from services.cli.output import print_json


def render(
    profile: Annotated[str, Option(help="A file in deploy/profiles.")] = "demo",
    overrides: Annotated[Sequence[str], Option("--set", help="NAME.FIELD=VALUE, as for `weir up`.")] = (),
    plain: Annotated[bool, Option(help="With a port of the edge that speaks no TLS, for development.")] = False,
    blobs: Annotated[str, Option(help="Address of the blob store; a volume of all who read it when left out.")] = "",
    members: Annotated[str, Option(help="Names of etcd's members, with commas; one process when left out.")] = "",
    domains: Annotated[str, Option(help="What hosts' names may be followed by, with commas.")] = "",
    public: Annotated[str, Option(help="Names of the edge for the public, with commas; localhost if left out.")] = "",
    operator: Annotated[str, Option(help="The mesh's first owner.")] = "operator",
) -> None:
    """Print what each process of a mesh in containers runs, reads and calls, as JSON."""
    from services.cli.mesh.plan import Container

    given: dict[str, Any] = {"blobs": blobs, "operator": operator}
    lists = {"members": members, "domains": domains, "public": public}
    given |= {name: tuple(text.split(",")) for name, text in lists.items() if text}
    site = Container(plain_edge=plain, **{name: value for name, value in given.items() if value})
    print_json(described(site, profile, tuple(overrides)))


def described(site: Any, profile: str, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """The same as a value. Raises UsageError."""
    from services.cli.mesh import up
    from services.cli.mesh.render import describe
    from services.cli.mesh.topology import TopologyError

    try:
        plan = up.make_plan(site, up.Options(profile=profile, overrides=overrides))
    except TopologyError as error:
        raise UsageError(str(error)) from error
    return describe(plan, site, profile=profile, overrides=overrides)
