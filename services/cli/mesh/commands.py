"""`weir up`, `down`, `status`, `logs`, `restart`, `kill`, `trace`: the mesh on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Annotated, Any

from services.cli.app import Argument, Json, Option, Output, UsageError, warn
from services.cli.mesh import lifecycle, logview, report, site
from services.cli.mesh.sites import Laptop
from services.cli.mesh.topology import TopologyError
from services.cli.output import print_json, write


def _site() -> Laptop:
    try:
        return site.locate()
    except TopologyError as error:
        raise _failed(str(error)) from error


def _failed(message: str, details: Sequence[str] = ()) -> SystemExit:
    """Prints why and gives the exit to raise."""
    warn(f"error: {message}")
    for line in details:
        warn(f"  | {logview.readable(line, coloured=False)}")
    return SystemExit(1)


def up(
    profile: Annotated[str, Option(help=f"A file in deploy/profiles: {', '.join(site.profiles(site.ROOT))}.")] = "demo",
    overrides: Annotated[
        Sequence[str], Option("--set", help="NAME.FIELD=VALUE, such as worker.simulated.step_interval=0.02")
    ] = (),
) -> None:
    """Start the mesh, wait until it is ready, stream one completion."""
    # Imported here: the other commands need neither gRPC nor the bootstraps.
    from services.cli.mesh import preflight
    from services.cli.mesh import up as starting

    where = _site()
    options = starting.Options(profile=profile, overrides=tuple(overrides))
    try:
        starting.up(where, options, say=partial(print, flush=True), write=write)
    except lifecycle.StartError as error:
        raise _failed(f"{error}; nothing is left running", error.details) from error
    except starting.NotAnsweringError as error:
        raise _failed(f"{error}; the mesh is left running: see `weir workers` and `weir get models`") from error
    except (lifecycle.Busy, preflight.PreflightError, TopologyError) as error:
        raise _failed(str(error)) from error
    except KeyboardInterrupt:
        warn("interrupted; nothing is left running")
        raise SystemExit(130) from None


def down(as_json: Json = False) -> None:
    """Stop the mesh and wait until every process is gone."""
    where = _site()
    stopped = lifecycle.stop(where.state)
    if as_json:
        print_json({"stopped": stopped}, indent=None)
    else:
        print("the mesh is down" if stopped else f"no mesh runs in {where.state}")


def status(output: Output = "table") -> None:
    """Show every process: state by its own health, pid, restarts, address. Exit code 1 unless all are ready."""
    where = _site()
    current = lifecycle.status(where.state)
    if current is None:
        if output == "json":
            print_json({"state": "down", "processes": []})
        else:
            print(f"no mesh runs in {where.state}")
        raise SystemExit(1)
    addresses = site.read_json(where.state / "mesh.json").get("services", {})
    rows: list[dict[str, Any]] = [{**addresses.get(each["name"], {}), **each} for each in current["processes"]]
    if output == "json":
        print_json({**current, "processes": rows})
    else:
        print(f"mesh {current['state']}, supervisor pid {current['pid']}, state in {where.state}\n")
        print(report.table(rows, wide=output == "wide"))
        if dropped := current.get("log_lines_dropped"):
            print(f"\n{dropped} log lines could not be written: is the disk full?")
    if current["state"] != "up" or not all(row["ready"] for row in rows):
        raise SystemExit(1)


def logs(
    name: Annotated[str, Argument("A process; all of them when left out.")] = "",
    follow: Annotated[bool, Option("--follow -f", help="Go on with what is written from now on.")] = False,
    lines: Annotated[int, Option("--lines -n", help="How many of the last lines.")] = 50,
    raw: Annotated[bool, Option(help="As written, JSON, instead of readable.")] = False,
) -> None:
    """Show the log of one process, or of all with a prefix."""
    from libs.supervisor.logs import ALL, log_path
    from libs.supervisor.reading import follow as followed
    from libs.supervisor.reading import last_lines

    where = _site()
    path = log_path(where.state, name or ALL)
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in path.parent.glob("*.log"))) if path.parent.is_dir() else ""
        raise _failed(f"no log of {name or 'a mesh'} in {path.parent}" + (f"; there are: {known}" if known else ""))
    coloured = sys.stdout.isatty()
    try:
        for line in chain(last_lines(path, lines), followed(path) if follow else ()):
            if raw:
                write(f"{line}\n")
            else:
                print(logview.readable(line, coloured=coloured), flush=follow)
    except (KeyboardInterrupt, BrokenPipeError):
        raise SystemExit from None


def restart(name: Annotated[str, Argument("A process.")]) -> None:
    """Stop one process with grace, start it again and wait until it is ready."""
    again = _controlled("restart", name)
    if not again["ready"]:
        raise _failed(f"{name} ended again before it was ready; see `weir logs {name}`")
    print(f"{name} is ready again, {again['uptime_s']:.1f} s after its start")


def kill(
    name: Annotated[str, Argument("A process.")],
    signal: Annotated[str, Option(help="KILL, TERM, STOP, CONT …")] = "KILL",
) -> None:
    """Send a signal to one process, for drills; the supervisor starts it again when it dies."""
    _controlled("request", "kill", name=name, signal=signal)
    print(f"sent SIG{signal} to {name}")


def _controlled(function: str, *arguments: str, **fields: str) -> Any:
    from libs.supervisor import control

    where = _site()
    try:
        return getattr(control, function)(where.state, *arguments, timeout=60, **fields)
    except control.NotRunning:
        raise _failed(f"no mesh runs in {where.state}") from None
    except control.CommandError as error:
        raise _failed(str(error)) from error


def trace(
    trace_id: Annotated[
        str, Argument("A trace's id, or a request's; the latest traces are listed when left out.", metavar="ID")
    ] = "",
    tenant: Annotated[str, Option(help="List this tenant's.")] = "",
    failed: Annotated[bool, Option("--failed", help="List those in which something failed.")] = False,
    slowest: Annotated[bool, Option("--slowest", help="List those first that took longest.")] = False,
    lines: Annotated[int, Option("--lines -n", help="How many traces to list.")] = 20,
    output: Output = "table",
) -> None:
    """Show a recorded trace as a tree of spans, or list traces."""
    from services.cli.mesh import traces

    folder = _site().state / "traces"
    if trace_id:
        if tenant or failed or slowest:
            raise UsageError("an id names one trace: --tenant, --failed and --slowest list several")
        traces.show(folder, trace_id, output=output)
    else:
        traces.listed(folder, traces.Wanted(tenant=tenant, failed=failed, slowest=slowest, count=lines), output=output)
