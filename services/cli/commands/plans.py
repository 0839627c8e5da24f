"""`weir plans`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.changes import DryRun, Reason, options, tell
from services.cli.output import Json, failures, plain, print_json, print_table
from services.cli.quantities import duration_of, parse_seconds, seconds_of, show_seconds

app = typer.Typer(help="What plans give their tenants.", invoke_without_command=True)
_STEP = "--step"
_KINDS = "cap_output=TOKENS[@PRESSURE], smaller_model=MODEL:INSTEAD[,…], cached_answer[=AGE], default_answer=TEXT, "
_KINDS += "cpu_fallback=POOL:INSTEAD[,…]"


@app.callback()
def default(context: typer.Context, as_json: Json = False) -> None:
    """What plans give their tenants; lists plans without a command."""
    if context.invoked_subcommand is None:
        list_plans(as_json)


@app.command("list")
def list_plans(as_json: Json = False) -> None:
    """List plans."""
    with failures():
        found = _plans()
    if as_json:
        print_json({"plans": [plain_plan(plan) for plan in found]})
    else:
        _print(found)


@app.command("set")
def set_plan(
    plan: Annotated[str, typer.Argument(help="free, paid, or a name for `weir tenants set --plan-policy`.")],
    weight: Annotated[float | None, typer.Option(help="Times the tenant's own weight; 0 is 1.")] = None,
    over_quota: Annotated[
        str | None, typer.Option(help="Beyond the limits per minute: refuse, or serve-idle when nobody else waits.")
    ] = None,
    kv_share: Annotated[
        float | None, typer.Option(help="Most of a pool's KV blocks for one tenant, 0 to 1; 0 is all.")
    ] = None,
    step: Annotated[
        list[str] | None, typer.Option(_STEP, help=f"A step of the ladder, in order; replaces the ladder. {_KINDS}")
    ] = None,
    no_steps: Annotated[bool, typer.Option("--no-steps", help="Take the ladder away: refuse instead.")] = False,
    revision: Annotated[int | None, typer.Option(help="The revision to replace; else the one just read.")] = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Set what is given of a plan."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    if step and no_steps:
        raise typer.BadParameter("cannot go with --no-steps", param_hint=_STEP)
    steps = [parse_step(text) for text in step or ()]
    given = {"weight": weight, "kv_share": kv_share, "over_quota": _over_quota(over_quota), "revision": revision}
    with failures():
        present = {each.id: each for each in _plans()}
        wanted = present.get(plan) or registry_pb2.PlanPolicy(id=plan)
        for field, value in given.items():
            if value is not None:
                setattr(wanted, field, value)
        if steps or no_steps:
            wanted.ClearField("ladder")
            wanted.ladder.extend(steps)
        request = registry_pb2.SetPlanPolicyRequest(plan=wanted, change=options(reason, dry_run=dry_run))
        stored = calls.registry("SetPlanPolicy", request).plan
    if as_json:
        print_json(plain_plan(stored))
    else:
        _print([stored])
    tell(dry_run)


def plain_plan(plan: Any) -> dict[str, Any]:
    """A plan as JSON values; of a step only what was chosen."""
    steps = [{step.WhichOneof("step"): _plain_step(step)} for step in plan.ladder]
    return {**plain(plan), "ladder": steps}


def parse_step(text: str) -> Any:
    """A step of a ladder; `show_step` the other way round.

    :raises typer.BadParameter: it is none.
    """
    from weir.registry.v1 import registry_pb2 as pb

    kind, _, value = text.partition("=")
    if kind == "cap_output":
        tokens, _, pressure = value.partition("@")
        try:
            return pb.DegradationStep(cap_output=pb.CapOutput(max_tokens=int(tokens), pressure=float(pressure or 0)))
        except ValueError:
            raise typer.BadParameter(f"{text!r}: expected cap_output=TOKENS[@PRESSURE]", param_hint=_STEP) from None
    if kind == "smaller_model":
        return pb.DegradationStep(smaller_model=pb.SmallerModel(models=_pairs(text, value)))
    if kind == "cpu_fallback":
        return pb.DegradationStep(cpu_fallback=pb.CpuFallback(pools=_pairs(text, value)))
    if kind == "cached_answer":
        age = duration_of(parse_seconds(value, _STEP)) if value else None
        return pb.DegradationStep(cached_answer=pb.CachedAnswer(max_age=age))
    if kind == "default_answer":
        return pb.DegradationStep(default_answer=pb.DefaultAnswer(text=value))
    raise typer.BadParameter(f"{text!r}: expected one of {_KINDS}", param_hint=_STEP)


def show_step(step: Any) -> str:
    """A step as it is written on the command line."""
    kind = step.WhichOneof("step")
    value = getattr(step, kind)
    if kind == "cap_output":
        return f"{kind}={value.max_tokens}" + (f"@{value.pressure:g}" if value.pressure else "")
    if kind in ("smaller_model", "cpu_fallback"):
        pairs = value.models if kind == "smaller_model" else value.pools
        return f"{kind}=" + ",".join(f"{name}:{pairs[name]}" for name in sorted(pairs))
    if kind == "cached_answer":
        return (
            f"{kind}={show_seconds(seconds_of(value.max_age)).replace(' ', '')}" if value.HasField("max_age") else kind
        )
    return f"{kind}={value.text}"


def show_over_quota(number: int) -> str:
    """What happens beyond the limits per minute."""
    from weir.registry.v1 import registry_pb2

    return "serve-idle" if number == registry_pb2.OVER_QUOTA_SERVE_IDLE else "refuse"


def _plans() -> list[Any]:
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    return list(calls.registry("ListPlanPolicies", registry_pb2.ListPlanPoliciesRequest()).plans)


def _print(found: list[Any]) -> None:
    print_table(
        ("PLAN", "WEIGHT", "OVER QUOTA", "KV SHARE", "LADDER", "REVISION"),
        (
            (
                plan.id,
                f"{plan.weight or 1:g}",
                show_over_quota(plan.over_quota),
                f"{plan.kv_share or 1:.0%}",
                " → ".join(show_step(step) for step in plan.ladder) or "refuse",
                plan.revision,
            )
            for plan in found
        ),
        empty="no plans; every tenant has a weight of its own and no degradation",
    )


def _plain_step(step: Any) -> dict[str, Any]:
    return plain(getattr(step, step.WhichOneof("step")))


def _over_quota(text: str | None) -> int | None:
    from weir.registry.v1 import registry_pb2

    if text is None:
        return None
    numbers = {"refuse": registry_pb2.OVER_QUOTA_REFUSE, "serve-idle": registry_pb2.OVER_QUOTA_SERVE_IDLE}
    if text not in numbers:
        raise typer.BadParameter(f"must be one of {', '.join(numbers)}", param_hint="--over-quota")
    return int(numbers[text])


def _pairs(text: str, value: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in value.split(","):
        name, colon, instead = pair.partition(":")
        if not (name and colon and instead):
            raise typer.BadParameter(f"{text!r}: expected NAME:INSTEAD[,NAME:INSTEAD…]", param_hint=_STEP)
        pairs[name] = instead
    return pairs
