"""`weir simulate`: the mesh's decisions over modelled workers, in seconds and without a mesh. Never a measurement.

The simulation runs services' policies, which no service may import; so it runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.output import Json, failed, failures

MODULE = "simulation"


def simulate(
    file: Annotated[Path | None, typer.Argument(help="A scenario, TOML (simulation/README.md).")] = None,
    preset: Annotated[
        str, typer.Option(help="overload (if nothing is said), fairness, flood, fleet or zone-loss.")
    ] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="How many, instead of the scenario's.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second in all, before steps and floods.")] = None,
    load: Annotated[float | None, typer.Option(help="All rates times this.")] = None,
    seconds: Annotated[float | None, typer.Option(help="How long requests come.")] = None,
    seed: Annotated[int | None, typer.Option(help="Another one, another run.")] = None,
    discipline: Annotated[str, typer.Option(help="fair, or fifo: a plain bounded queue, to compare with.")] = "",
    timeline: Annotated[bool, typer.Option("--timeline", help="Second by second too.")] = False,
    as_json: Json = False,
) -> None:
    """Simulate the mesh under load: the real limiter and admission over modelled workers."""
    if importlib.util.find_spec(MODULE) is None:
        raise failed("the simulation is not installed here; run it from a checkout or from the wheel")
    argv = [str(file)] if file is not None else []
    named = {"preset": preset, "workers": workers, "rate": rate, "load": load, "seconds": seconds, "seed": seed}
    for name, value in {**named, "discipline": discipline}.items():
        if value not in (None, ""):
            argv += [f"--{name}", str(value)]
    argv += [f"--{name}" for name, given in (("timeline", timeline), ("json", as_json)) if given]
    with failures():
        code = subprocess.run([sys.executable, "-m", MODULE, *argv], check=False).returncode
    if code:
        raise typer.Exit(code)
