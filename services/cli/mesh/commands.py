"""`weir up`, `down`, `status`, `logs`, `restart`, `kill`, `trace`: the mesh on this machine."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from services.cli.mesh import lifecycle, logview, report, site
from services.cli.mesh.plan import Site
from services.cli.mesh.topology import TopologyError

app = typer.Typer(no_args_is_help=True, help="The mesh on this machine.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _site() -> Site:
    try:
        return site.locate()
    except TopologyError as error:
        raise _failed(str(error)) from error


def _failed(message: str, details: list[str] | None = None) -> typer.Exit:
    """Prints why and gives the exit to raise."""
    print(f"error: {message}", file=sys.stderr)
    for line in details or ():
        print(f"  | {logview.readable(line, coloured=False)}", file=sys.stderr)
    return typer.Exit(1)


@app.command()
def up(
    profile: Annotated[
        str, typer.Option(help="A file in deploy/profiles: demo, simulated, bench, overload, vllm.")
    ] = "demo",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="NAME.FIELD=VALUE, such as worker.simulated.step_interval=0.02")
    ] = None,
) -> None:
    """Start the mesh, wait until it is ready, stream one completion."""
    # Imported here: the other commands need neither gRPC nor the bootstraps.
    from services.cli.mesh import preflight
    from services.cli.mesh import up as starting

    where = _site()
    options = starting.Options(profile=profile, overrides=tuple(overrides or ()))
    try:
        starting.up(where, options, say=_say, write=_write)
    except lifecycle.StartError as error:
        raise _failed(f"{error}; nothing is left running", error.details) from error
    except starting.NotAnsweringError as error:
        raise _failed(f"{error}; the mesh is left running: see `weir workers` and `weir models`") from error
    except (lifecycle.Busy, preflight.PreflightError, TopologyError) as error:
        raise _failed(str(error)) from error
    except KeyboardInterrupt:
        print("interrupted; nothing is left running", file=sys.stderr)
        raise typer.Exit(130) from None


@app.command()
def down(as_json: Json = False) -> None:
    """Stop the mesh and wait until every process is gone."""
    where = _site()
    stopped = lifecycle.stop(where.state)
    if as_json:
        print(json.dumps({"stopped": stopped}))
    else:
        print("the mesh is down" if stopped else f"no mesh runs in {where.state}")


@app.command()
def status(as_json: Json = False) -> None:
    """Show every process: state by its own health, pid, restarts, address. Exit code 1 unless all are ready."""
    where = _site()
    current = lifecycle.status(where.state)
    if current is None:
        if as_json:
            print(json.dumps({"state": "down", "processes": []}))
        else:
            print(f"no mesh runs in {where.state}")
        raise typer.Exit(1)
    addresses = site.read_json(where.state / "mesh.json").get("services", {})
    rows: list[dict[str, Any]] = [
        {**process, **{key: value for key, value in addresses.get(process["name"], {}).items() if key != "pid"}}
        for process in current["processes"]
    ]
    if as_json:
        print(json.dumps({**current, "processes": rows}, indent=2))
    else:
        print(f"mesh {current['state']}, supervisor pid {current['pid']}, state in {where.state}\n")
        print(report.table(rows))
    if current["state"] != "up" or not all(row["ready"] for row in rows):
        raise typer.Exit(1)


@app.command()
def logs(
    name: Annotated[str, typer.Argument(help="A process; all of them when left out.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many of the last lines.")] = 50,
    raw: Annotated[bool, typer.Option(help="As written, JSON, instead of readable.")] = False,
) -> None:
    """Show the log of one process, or of all with a prefix."""
    from libs.supervisor.logs import ALL, log_path

    where = _site()
    path = log_path(where.state, name or ALL)
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in path.parent.glob("*.log"))) if path.parent.is_dir() else ""
        raise _failed(f"no log of {name or 'a mesh'} in {path.parent}" + (f"; there are: {known}" if known else ""))
    coloured = sys.stdout.isatty()

    def show(line: str) -> None:
        print(line if raw else logview.readable(line, coloured=coloured), flush=follow)

    try:
        for line in logview.last_lines(path, lines):
            show(line)
        if follow:
            for line in logview.follow(path):
                show(line)
    except (KeyboardInterrupt, BrokenPipeError):
        raise typer.Exit from None


@app.command()
def restart(name: Annotated[str, typer.Argument(help="A process.")]) -> None:
    """Stop one process with grace and start it again."""
    _command("restart", name=name)
    print(f"{name} is restarting")


@app.command()
def kill(
    name: Annotated[str, typer.Argument(help="A process.")],
    signal: Annotated[str, typer.Option(help="KILL, TERM, STOP, CONT …")] = "KILL",
) -> None:
    """Send a signal to one process, for drills; the supervisor starts it again when it dies."""
    _command("kill", name=name, signal=signal)
    print(f"sent SIG{signal} to {name}")


def _command(operation: str, **fields: str) -> None:
    from libs.supervisor import control

    where = _site()
    try:
        control.request(where.state, operation, timeout=60, **fields)
    except control.NotRunning:
        raise _failed(f"no mesh runs in {where.state}") from None
    except control.CommandError as error:
        raise _failed(str(error)) from error


def _say(line: str) -> None:
    print(line, flush=True)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@app.command()
def trace(
    trace_id: Annotated[str, typer.Argument(help="32 hex digits; the latest traces are listed when left out.")] = "",
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many traces to list.")] = 20,
    as_json: Json = False,
) -> None:
    """Show a recorded trace as a tree of spans."""
    from services.cli.mesh import traces

    raise typer.Exit(traces.show(_site().state / "traces", trace_id, as_json=as_json, count=lines))
