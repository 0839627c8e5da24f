"""`weir rollout`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.changes import DryRun, Reason
from services.cli.commands import rollout_views as views
from services.cli.commands.rollout_plan import GATE_HELP, STEPS, Options, full_name, read_file, rollout_of
from services.cli.output import Json, failed, failures, plain, print_fields, print_json
from services.cli.quantities import duration_of, parse_seconds

app = typer.Typer(help="Change what an alias gives, in steps that are watched.", no_args_is_help=True)
Alias = Annotated[str, typer.Argument(help="The alias, such as weir-fast.")]
On = Annotated[bool | None, typer.Option("--on/--off", help="Set or clear it; without either, show it.")]
_TIME = "such as 60s or 10m"
_AGAIN_SECONDS = 0.5
"""Before a watch goes on at another replica: one that drains still answers once."""


@app.command()
def start(
    alias: Alias,
    version: Annotated[
        str | None, typer.Argument(help="The new version, such as 2 or weir-fast@2; not with --arm.")
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help=f"Shares of the canary in percent; full traffic follows. Else {STEPS}.")
    ] = None,
    step_duration: Annotated[str | None, typer.Option(help=f"Each step at least so long, {_TIME}; else 1m.")] = None,
    step_max: Annotated[str | None, typer.Option(help=f"Held when undecided after so long, {_TIME}; else 1h.")] = None,
    step_samples: Annotated[
        int | None, typer.Option(help="Requests of the canary per step at least; else 100.")
    ] = None,
    shadow: Annotated[str | None, typer.Option(help="Mirror so many percent of the requests first.")] = None,
    shadow_duration: Annotated[str | None, typer.Option(help=f"At least so long, {_TIME}; else 1m.")] = None,
    shadow_samples: Annotated[int | None, typer.Option(help="Compared answers at least; else 50.")] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", help="For an experiment: NAME=VERSION:PERCENT, such as b=weir-fast@2:20; repeatable."),
    ] = None,
    sticky: Annotated[str | None, typer.Option(help="By what callers keep their arm: tenant, user, session.")] = None,
    max_share: Annotated[str | None, typer.Option(help="Most percent of the requests, as measured.")] = None,
    max_tenants: Annotated[int | None, typer.Option(help="Most tenants that meet an arm.")] = None,
    only_tenant: Annotated[list[str] | None, typer.Option("--only-tenant", help="Only these; repeatable.")] = None,
    except_tenant: Annotated[list[str] | None, typer.Option("--except-tenant", help="Never these; repeatable.")] = None,
    max_cost: Annotated[str | None, typer.Option(help="Most dollars that its arms may cost in all.")] = None,
    gate: Annotated[
        list[str] | None, typer.Option("--gate", help=f"{GATE_HELP} Repeatable; else the defaults.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Most probability of a wrong end, each way; else 0.01.")] = None,
    on_rollback: Annotated[
        str | None, typer.Option(help="Streams on an arm that is taken out: finish, migrate.")
    ] = None,
    keep_warm: Annotated[str | None, typer.Option(help=f"The old version stays loaded, {_TIME}; else 10m.")] = None,
    prepare_timeout: Annotated[str | None, typer.Option(help=f"To get ready at most, {_TIME}; else 10m.")] = None,
    capacity_share: Annotated[
        float | None, typer.Option(help="Most of the pool's KV blocks for arms, 0 to 1; else 0.5.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="A rollout as JSON; options go over it.")] = None,
    override: Annotated[
        str, typer.Option(help="Why it starts although rollouts are frozen or a budget is used up.")
    ] = "",
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Begin a rollout: a canary of VERSION in steps, or an experiment with --arm."""
    from weir.registry.v1 import registry_pb2 as pb

    with failures():
        base = read_file(file) if file is not None else None
        baseline = _baseline(alias)
        options = Options(
            alias=alias,
            version=full_name(version, baseline) if version is not None else None,
            arms=tuple(arm or ()),
            steps=steps,
            step_duration=step_duration,
            step_max=step_max,
            step_samples=step_samples,
            shadow=shadow,
            shadow_duration=shadow_duration,
            shadow_samples=shadow_samples,
            sticky=sticky,
            max_share=max_share,
            max_tenants=max_tenants,
            only_tenants=tuple(only_tenant or ()),
            except_tenants=tuple(except_tenant or ()),
            max_cost=max_cost,
            gates=tuple(gate or ()),
            alpha=alpha,
            on_rollback=on_rollback,
            keep_warm=keep_warm,
            prepare_timeout=prepare_timeout,
            capacity_share=capacity_share,
            override=override,
        )
        wanted = rollout_of(options, base=base)
        wanted.reason = reason or wanted.reason
        wanted.revision = _revision(alias)
        change = pb.ChangeOptions(dry_run=dry_run, reason=wanted.reason)
        stored = _registry("StartRollout", pb.StartRolloutRequest(rollout=wanted, change=change)).rollout
    if as_json:
        print_json(plain(stored))
        return
    print("this would begin:" if dry_run else "begun:")
    print_fields(views.show_plan(stored))
    if not dry_run:
        print(f"follow it with `weir rollout watch {alias}`")


@app.command()
def status(
    alias: Annotated[str | None, typer.Argument(help="The alias; without it, all rollouts.")] = None,
    as_json: Json = False,
) -> None:
    """Show rollouts, or one with its arms, gates, workers and last decisions."""
    with failures():
        if alias is None:
            found = list(_rollouts(""))
            if as_json:
                print_json({"rollouts": [plain(each) for each in found]})
            else:
                views.print_rollouts(found)
            return
        known = _status(alias)
    if as_json:
        print_json(views.plain_status(known))
    else:
        views.print_status(known)


@app.command()
def explain(alias: Alias, as_json: Json = False) -> None:
    """Say in words why a rollout stands where it does: decisions, gates with their intervals, what it waits for."""
    with failures():
        known = _status(alias)
    lines = views.explanation(known, time.time())
    if as_json:
        print_json({"text": lines, "status": views.plain_status(known)})
    else:
        print("\n".join(lines))


@app.command()
def watch(
    alias: Alias,
    interval: Annotated[str, typer.Option(help=f"Between two looks, {_TIME}; at least 100ms.")] = "1s",
    as_json: Json = False,
) -> None:
    """Follow a rollout until it ends: a live table, or lines when standard output is no terminal. Exits 1 when it was
    rolled back or aborted."""
    seconds = parse_seconds(interval, "--interval")
    with failures():
        if as_json or not sys.stdout.isatty():
            last = _follow(alias, seconds, _print_json_line if as_json else _LinePrinter())
        else:
            last = _follow_live(alias, seconds)
    if views.phase_name(last.rollout) != "promoted":
        raise failed(f"{views.phase_name(last.rollout)}: {last.rollout.state.reason}")


@app.command()
def promote(
    alias: Alias,
    arm: Annotated[str, typer.Option(help="Which, of an experiment.")] = "",
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Let the alias point to an arm's version from now on, whatever the gates say."""
    _steer(alias, "PROMOTE", reason, dry_run, as_json, arm=arm)


@app.command()
def advance(alias: Alias, reason: Reason = "", dry_run: DryRun = False, as_json: Json = False) -> None:
    """Go to the next phase or step now, whatever the gates say."""
    _steer(alias, "ADVANCE", reason, dry_run, as_json)


@app.command()
def pause(alias: Alias, reason: Reason = "", dry_run: DryRun = False, as_json: Json = False) -> None:
    """Stay at this step; gates still roll back."""
    _steer(alias, "PAUSE", reason, dry_run, as_json)


@app.command()
def resume(alias: Alias, reason: Reason = "", dry_run: DryRun = False, as_json: Json = False) -> None:
    """Go on after a pause or a hold."""
    _steer(alias, "RESUME", reason, dry_run, as_json)


@app.command()
def abort(alias: Alias, reason: Reason = "", dry_run: DryRun = False, as_json: Json = False) -> None:
    """Take all traffic off a rollout's arms at once; the alias goes on with its baseline."""
    from weir.registry.v1 import registry_pb2 as pb

    with failures():
        change = pb.ChangeOptions(dry_run=dry_run, reason=reason)
        stored = _registry("AbortRollout", pb.AbortRolloutRequest(alias=alias, change=change)).rollout
    _print_steered(stored, as_json, dry_run)


@app.command()
def kill(on: On = None, reason: Reason = "", dry_run: DryRun = False, as_json: Json = False) -> None:
    """The kill switch: while it is on, no arm of any rollout gets traffic, real or mirrored."""
    _switch("kill", on, reason, dry_run, as_json)


@app.command()
def freeze(on: On = None, reason: Reason = "", dry_run: DryRun = False, as_json: Json = False) -> None:
    """The freeze: while it is on, no rollout starts or goes on without an override; arms keep what they have."""
    _switch("freeze", on, reason, dry_run, as_json)


def _steer(alias: str, how: str, reason: str, dry_run: bool, as_json: bool, *, arm: str = "") -> None:
    from weir.registry.v1 import registry_pb2 as pb

    with failures():
        request = pb.SteerRolloutRequest(
            alias=alias,
            steering=getattr(pb, f"STEERING_{how}"),
            arm=arm,
            change=pb.ChangeOptions(dry_run=dry_run, reason=reason),
        )
        stored = _registry("SteerRollout", request).rollout
    _print_steered(stored, as_json, dry_run)


def _print_steered(stored: Any, as_json: bool, dry_run: bool) -> None:
    if as_json:
        print_json(plain(stored))
        return
    if dry_run:
        print("this would make it:")
    views.print_rollouts([stored])


def _switch(field: str, on: bool | None, reason: str, dry_run: bool, as_json: bool) -> None:
    from weir.registry.v1 import registry_pb2 as pb

    with failures():
        present = _registry("GetRolloutSwitch", pb.GetRolloutSwitchRequest()).switch
        if on is not None:
            setattr(present, field, on)
            present.reason = reason if present.kill or present.freeze else ""
            change = pb.ChangeOptions(dry_run=dry_run, reason=reason)
            # `switch` holds what was read, with its revision: nobody's change in between is lost.
            request = pb.SetRolloutSwitchRequest(switch=present, change=change)
            present = _registry("SetRolloutSwitch", request).switch
    if as_json:
        print_json(plain(present))
    else:
        print_fields((("kill", present.kill), ("freeze", present.freeze), ("reason", present.reason)))


def _baseline(alias: str) -> str:
    """The version that the alias gives; the registry refuses what is no single one."""
    from weir.registry.v1 import registry_pb2 as pb

    for each in _registry("ListModels", pb.ListModelsRequest()).aliases:
        if each.name == alias and each.targets:
            return str(each.targets[0].model_version)
    return alias


def _revision(alias: str) -> int:
    """Of the alias's last rollout; 0: it never had one."""
    return max((int(each.revision) for each in _rollouts(alias)), default=0)


def _rollouts(alias: str) -> Any:
    from weir.registry.v1 import registry_pb2 as pb

    return _registry("ListRollouts", pb.ListRolloutsRequest(alias=alias)).rollouts


def _registry(method: str, request: Any) -> Any:
    from services.cli import calls

    return calls.registry(method, request)


def _status(alias: str) -> Any:
    from weir.rollout.v1 import rollout_pb2 as pb
    from weir.rollout.v1 import rollout_pb2_grpc

    from services.cli import calls

    return calls.with_channel(
        "rollout",
        lambda channel: rollout_pb2_grpc.RolloutServiceStub(channel).GetRollout(
            pb.GetRolloutRequest(alias=alias), timeout=calls.TIMEOUT
        ),
    ).status


def _follow(alias: str, interval: float, show: Any) -> Any:
    """Shows every status until the rollout has ended; the last one. Replicas that go meanwhile are left for others."""
    from weir.rollout.v1 import rollout_pb2 as pb
    from weir.rollout.v1 import rollout_pb2_grpc

    from libs.errors import Reason, WeirError
    from services.cli import calls

    told = False

    async def use(channel: Any) -> Any:
        nonlocal told
        request = pb.WatchRolloutRequest(alias=alias, interval=duration_of(interval))
        stream = rollout_pb2_grpc.RolloutServiceStub(channel).WatchRollout(request)
        async for answer in stream:
            told = True
            show(answer.status)
            if views.is_over(answer.status.rollout):
                stream.cancel()
                return answer.status
        raise WeirError(Reason.DRAINING, "the controller ended the watch; try again")

    while True:
        told = False
        try:
            return calls.with_channel("rollout", use)
        except WeirError as error:
            if not told or error.reason not in (Reason.DRAINING, Reason.DEPENDENCY_UNAVAILABLE):
                raise
            time.sleep(_AGAIN_SECONDS)


def _follow_live(alias: str, interval: float) -> Any:
    from rich.live import Live

    with Live(auto_refresh=False, screen=False) as live:
        return _follow(alias, interval, lambda known: live.update(views.live_table(known), refresh=True))


class _LinePrinter:
    """Prints a line whenever it says something new."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, known: Any) -> None:
        line = views.watch_line(known)
        if line != self._last:
            self._last = line
            print(f"{time.strftime('%H:%M:%S', time.gmtime())} {line}", flush=True)


def _print_json_line(known: Any) -> None:
    import json

    print(json.dumps(views.plain_status(known), ensure_ascii=False), flush=True)
