"""A rollout as it is written on the command line or in a file."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from services.cli.quantities import duration_of, parse_microusd, parse_seconds

_PERCENT = 100
_GATE = re.compile(
    r"(?P<metric>[a-z0-9_]+|score:[a-z][a-z0-9_.-]*)(?P<sign><=|>=)(?P<number>[^,]+)(?P<words>(,[a-z]+)*)"
)
_STICKY = ("tenant", "user", "session")
_IN_FLIGHT = ("finish", "migrate")
_WORDS = frozenset({"hold", "must", "lower"})
GATE_HELP = (
    "METRIC<=TOLERANCE[,hold][,must][,lower]: how much worse than the baseline is still fine, such as ttft<=20%, "
    "error_rate<=1%, cost_per_1k_tokens<=2%,hold,must, burn_rate<=1; or score:NAME>=0.8. hold: a breach only holds; "
    "must: a step is passed only once it is shown; lower: of a score, less is better."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was given; None or empty: not given."""

    alias: str
    version: str | None = None
    arms: tuple[str, ...] = ()
    steps: str | None = None
    step_duration: str | None = None
    step_max: str | None = None
    step_samples: int | None = None
    shadow: str | None = None
    shadow_duration: str | None = None
    shadow_samples: int | None = None
    sticky: str | None = None
    max_share: str | None = None
    max_tenants: int | None = None
    only_tenants: tuple[str, ...] = ()
    except_tenants: tuple[str, ...] = ()
    max_cost: str | None = None
    gates: tuple[str, ...] = ()
    alpha: float | None = None
    on_rollback: str | None = None
    keep_warm: str | None = None
    prepare_timeout: str | None = None
    capacity_share: float | None = None
    override: str = ""


STEPS = "1,5,25,50"
"""Percent, when nothing else is said; full traffic follows the last."""


def rollout_of(options: Options, *, base: Any | None = None) -> Any:
    """The rollout that is asked for, laid over `base`.

    :raises typer.BadParameter: naming the option.
    """
    from weir.registry.v1 import registry_pb2 as pb

    made = pb.Rollout()
    if base is not None:
        made.CopyFrom(base)
    made.alias = options.alias
    _add_arms(made, options)
    _add_steps(made, options)
    _add_shadow(made, options)
    _add_radius(made.blast_radius, options)
    if options.gates:
        made.ClearField("gates")
        made.gates.extend(parse_gate(text) for text in options.gates)
    if options.sticky is not None:
        made.sticky = getattr(pb, f"STICKY_BY_{_choice(options.sticky, _STICKY, '--sticky')}")
    if options.on_rollback is not None:
        made.on_rollback = getattr(pb, f"IN_FLIGHT_{_choice(options.on_rollback, _IN_FLIGHT, '--on-rollback')}")
    if options.alpha is not None:
        made.alpha = options.alpha
    if options.capacity_share is not None:
        made.capacity_share = options.capacity_share
    for name in ("keep_warm", "prepare_timeout"):
        if (text := getattr(options, name)) is not None:
            option = f"--{name.replace('_', '-')}"
            getattr(made, name).CopyFrom(duration_of(parse_seconds(text, option)))
    if options.override:
        made.override_reason = options.override
    return made


def read_file(path: Path) -> Any:
    """A rollout out of a file, in the JSON form of `weir.registry.v1.Rollout`; durations as "60s".

    :raises typer.BadParameter: it cannot be read, or is none.
    """
    from google.protobuf import json_format
    from weir.registry.v1 import registry_pb2 as pb

    try:
        return json_format.ParseDict(json.loads(path.read_text(encoding="utf-8")), pb.Rollout())
    except (OSError, ValueError, json_format.ParseError) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--file") from None


def full_name(version: str, baseline: str) -> str:
    """ "2" beside the baseline "weir-fast@1" is "weir-fast@2"; a full name stays."""
    return version if "@" in version else f"{baseline.partition('@')[0]}@{version}"


def parse_share(text: str, option: str) -> int:
    """Basis points of "5", "5%" or "0.5%".

    :raises typer.BadParameter: naming the option.
    """
    try:
        points = float(text.removesuffix("%")) * _PERCENT
    except ValueError:
        points = math.nan
    if not 0 < points <= _PERCENT**2 or abs(points - round(points)) > 1e-6:
        raise typer.BadParameter(f"{text!r}: percent above 0, at most 100, down to 0.01", param_hint=option)
    return round(points)


def parse_gate(text: str) -> Any:
    """A gate; `show_gate` the other way round.

    :raises typer.BadParameter: it is none.
    """
    from weir.registry.v1 import registry_pb2 as pb

    match = _GATE.fullmatch(text)
    words = {word for word in match["words"].split(",") if word} if match else set()
    if match is None or words - _WORDS:
        raise typer.BadParameter(f"{text!r}: expected {GATE_HELP}", param_hint="--gate")
    number = match["number"]
    try:
        value = float(number.removesuffix("%")) / (_PERCENT if number.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: {number!r} is no number", param_hint="--gate") from None
    score = match["metric"].startswith("score:")
    if match["sign"] == ">=" and not score:
        raise typer.BadParameter(f"{text!r}: only a score:NAME can be asked to be at least", param_hint="--gate")
    made = pb.Gate(metric=match["metric"], must_hold="must" in words, lower_is_better="lower" in words)
    made.on_breach = pb.GATE_ACTION_HOLD if "hold" in words else pb.GATE_ACTION_ROLL_BACK
    if match["sign"] == ">=":
        made.at_least = value
    else:
        made.tolerance = value
    return made


def show_gate(gate: Any) -> str:
    """A gate as it is written on the command line."""
    from weir.registry.v1 import registry_pb2 as pb

    if gate.HasField("at_least"):
        text = f"{gate.metric}>={gate.at_least:g}"
    elif gate.metric == "burn_rate" or gate.metric.startswith("score:"):
        text = f"{gate.metric}<={gate.tolerance or float(gate.metric == 'burn_rate'):g}"
    else:
        text = f"{gate.metric}<={gate.tolerance * _PERCENT:g}%"
    if gate.on_breach == pb.GATE_ACTION_HOLD:
        text += ",hold"
    return text + (",must" if gate.must_hold else "") + (",lower" if gate.lower_is_better else "")


def _add_arms(made: Any, options: Options) -> None:
    if options.version is not None and options.arms:
        raise typer.BadParameter("a VERSION is a canary; an experiment has --arm instead", param_hint="--arm")
    if options.version is not None:
        made.ClearField("arms")
        made.arms.add(name="canary", model_version=options.version)
    if options.arms:
        made.ClearField("arms")
        made.ClearField("steps")
    for text in options.arms:
        name, equals, rest = text.partition("=")
        version, colon, share = rest.rpartition(":")
        if not (name and equals and version and colon):
            raise typer.BadParameter(
                f"{text!r}: expected NAME=VERSION:PERCENT, such as b=weir-fast@2:20", param_hint="--arm"
            )
        made.arms.add(name=name, model_version=version, weight=parse_share(share, "--arm"))
    if not made.arms:
        raise typer.BadParameter("a VERSION, --arm or --file is needed", param_hint="VERSION")


def _add_steps(made: Any, options: Options) -> None:
    given = [options.steps, options.step_duration, options.step_max, options.step_samples]
    if options.arms:
        if any(value is not None for value in given):
            raise typer.BadParameter("an experiment has arms and no steps", param_hint="--steps")
        return
    if options.steps is not None or not made.steps:
        made.ClearField("steps")
        for text in (options.steps or STEPS).split(","):
            made.steps.add(weight=parse_share(text.strip(), "--steps"))
        if made.steps[-1].weight == _PERCENT**2:
            # With everybody on the canary nothing is left to compare it with.
            raise typer.BadParameter(
                "full traffic follows the last step by itself; leave 100 out", param_hint="--steps"
            )
    for step in made.steps:
        if options.step_duration is not None:
            step.min_duration.CopyFrom(duration_of(parse_seconds(options.step_duration, "--step-duration")))
        if options.step_max is not None:
            step.max_duration.CopyFrom(duration_of(parse_seconds(options.step_max, "--step-max")))
        if options.step_samples is not None:
            step.min_samples = options.step_samples


def _add_shadow(made: Any, options: Options) -> None:
    if options.shadow is not None:
        made.shadow.share = parse_share(options.shadow, "--shadow")
    elif not made.HasField("shadow"):
        if options.shadow_duration is not None or options.shadow_samples is not None:
            raise typer.BadParameter("goes with --shadow PERCENT", param_hint="--shadow-duration")
        return
    if options.shadow_duration is not None:
        made.shadow.min_duration.CopyFrom(duration_of(parse_seconds(options.shadow_duration, "--shadow-duration")))
    if options.shadow_samples is not None:
        made.shadow.min_samples = options.shadow_samples


def _add_radius(radius: Any, options: Options) -> None:
    if options.max_share is not None:
        radius.max_share = parse_share(options.max_share, "--max-share")
    if options.max_tenants is not None:
        radius.max_tenants = options.max_tenants
    if options.only_tenants:
        radius.only_tenants[:] = options.only_tenants
    if options.except_tenants:
        radius.except_tenants[:] = options.except_tenants
    if options.max_cost is not None:
        radius.max_cost_microusd = parse_microusd(options.max_cost, "--max-cost")


def _choice(text: str, choices: tuple[str, ...], option: str) -> str:
    if text not in choices:
        raise typer.BadParameter(f"must be one of {', '.join(choices)}", param_hint=option)
    return text.upper()
