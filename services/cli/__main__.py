"""`weir`: operators' commands against a running mesh, and the mesh on this machine (services/cli/mesh)."""

from __future__ import annotations

import sys

import typer

from services.cli.commands import (
    audit,
    calibrate,
    complete,
    keys,
    levels,
    limits,
    models,
    plans,
    prices,
    registry,
    rollout,
    simulate,
    slo,
    slos,
    tenants,
    workers,
    xds,
)

OWN = (
    "models",
    "tenants",
    "keys",
    "limits",
    "plans",
    "slos",
    "slo",
    "rollout",
    "prices",
    "levels",
    "workers",
    "endpoints",
    "complete",
    "registry",
    "audit",
    "xds",
    "calibrate",
    "simulate",
)
"""Commands that need nothing of services/cli/mesh, whose imports would cost them 0.2 s."""


def build(*, with_mesh: bool = True) -> typer.Typer:
    """The application."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Operate a Weir inference mesh. WEIR_STATE_DIR (default .weir) says which. --json works everywhere.",
    )
    if with_mesh:
        from services.cli.mesh import app as mesh_app

        app.add_typer(mesh_app)
    app.add_typer(models.app, name="models")
    app.add_typer(tenants.app, name="tenants")
    app.add_typer(keys.app, name="keys")
    app.add_typer(limits.app, name="limits")
    app.add_typer(plans.app, name="plans")
    app.add_typer(slos.app, name="slos")
    app.add_typer(slo.app, name="slo")
    app.add_typer(rollout.app, name="rollout")
    app.add_typer(prices.app, name="prices")
    app.add_typer(registry.app, name="registry")
    app.add_typer(audit.app, name="audit")
    app.add_typer(xds.app, name="xds")
    app.command("levels")(levels.levels)
    app.command("workers")(workers.workers)
    app.command("endpoints")(workers.endpoints)
    app.command("calibrate")(calibrate.calibrate)
    app.command("simulate")(simulate.simulate)
    app.command("complete")(complete.complete)
    return app


def json_last(arguments: list[str]) -> list[str]:
    """The arguments with `--json` moved behind the command that it is meant for; what follows "--" stays."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, rest = arguments[:end], arguments[end:]
    if "--json" not in options:
        return arguments
    return [*(each for each in options if each != "--json"), "--json", *rest]


def main(argv: list[str] | None = None) -> None:
    """The console script. `--json` may stand anywhere."""
    arguments = json_last(list(sys.argv[1:] if argv is None else argv))
    build(with_mesh=not arguments or arguments[0] not in OWN)(args=arguments, prog_name="weir")


if __name__ == "__main__":
    main()
