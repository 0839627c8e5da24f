"""A rollout as it is written on the command line: options for what is said most, laid into its plain form."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from libs.resources.kinds import BY_PLURAL
from services.cli.app import Option, UsageError
from services.cli.fields import assign
from services.cli.quantities import parse_microusd, parse_seconds

_PERCENT = 100
_GATE = re.compile(
    r"(?P<metric>[a-z0-9_]+|score:[a-z][a-z0-9_.-]*)(?P<sign><=|>=)(?P<number>[^,]+)(?P<words>(,[a-z]+)*)"
)
_WORDS = frozenset({"hold", "must", "lower"})
GATE_HELP = (
    "METRIC<=TOLERANCE[,hold][,must][,lower]: how much worse than the baseline is still fine, such as ttft<=20%, "
    "error_rate<=1%, cost_per_1k_tokens<=2%,hold,must, burn_rate<=1; or score:NAME>=0.8. hold: a breach only holds; "
    "must: a step is passed only once it is shown; lower: of a score, less is better."
)
STEPS = "1,5,25,50"
"""Percent, when nothing else is said; full traffic follows the last."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """Options that say something of a rollout; what is empty was not given."""

    steps: Annotated[str, Option(help=f"Shares of the canary in percent; full traffic follows. Else {STEPS}.")] = ""
    step_duration: Annotated[str, Option(help="Each step at least so long, such as 60s or 10m; else 1m.")] = ""
    step_samples: Annotated[int, Option(least=0, help="Requests of the canary per step at least; else 100.")] = 0
    shadow: Annotated[str, Option(help="Mirror so many percent of the requests first.")] = ""
    arm: Annotated[
        Sequence[str], Option(help="For an experiment: NAME=VERSION:PERCENT, such as b=weir-fast@2:20; repeatable.")
    ] = ()
    gate: Annotated[Sequence[str], Option(help=f"{GATE_HELP} Repeatable; else the defaults.")] = ()
    only_tenant: Annotated[Sequence[str], Option(help="Only these; repeatable.")] = ()
    max_cost: Annotated[str, Option(help="Most dollars that its arms may cost in all.")] = ""
    override: Annotated[str, Option(help="Why it starts although rollouts are frozen or a budget is used up.")] = ""
    schema_changed: Annotated[
        bool,
        Option("--schema-changed", help="Start although a version takes or gives something else than the alias's."),
    ] = False
    set_: Annotated[
        Sequence[str],
        Option("--set", metavar="FIELD=VALUE", help="Any other field of `weir explain rollouts`; repeatable."),
    ] = ()


def plan(form: dict[str, Any], said: Said, version: str = "") -> dict[str, Any]:
    """The form with what was said laid over it.

    :param form: a Rollout's, such as out of a file; it is changed.
    :raises UsageError: naming the option.
    """
    spec: dict[str, Any] = form.setdefault("spec", {})
    if version and said.arm:
        raise UsageError("--arm: a VERSION is a canary; an experiment has --arm instead")
    if version:
        spec["arms"] = [{"name": "canary", "model_version": version}]
    if said.arm:
        spec["arms"] = [_arm(text) for text in said.arm]
        spec.pop("steps", None)
    if not spec.get("arms"):
        raise UsageError("VERSION, --arm or --file is needed")
    if said.arm and (said.steps or said.step_duration or said.step_samples):
        raise UsageError("--steps: an experiment has arms and no steps")
    if not said.arm:
        _lay_steps(spec, said.steps, said.step_duration, said.step_samples)
    if said.shadow:
        spec.setdefault("shadow", {})["share"] = parse_share(said.shadow, "--shadow")
    if said.gate:
        spec["gates"] = [parse_gate(text) for text in said.gate]
    if said.only_tenant:
        spec.setdefault("blast_radius", {})["only_tenants"] = list(said.only_tenant)
    if said.max_cost:
        spec.setdefault("blast_radius", {})["max_cost_microusd"] = parse_microusd(said.max_cost, "--max-cost")
    if said.override:
        spec["override_reason"] = said.override
    if said.schema_changed:
        spec["schema_changed"] = True
    for text in said.set_:
        assign(form, BY_PLURAL["rollouts"], text)
    return form


def full_name(version: str, baseline: str) -> str:
    """ "2" beside the baseline "weir-fast@1" is "weir-fast@2"; a full name stays."""
    return version if "@" in version else f"{baseline.partition('@')[0]}@{version}"


def parse_share(text: str, option: str) -> int:
    """Basis points of "5", "5%" or "0.5%".

    :raises UsageError: naming the option.
    """
    try:
        points = float(text.removesuffix("%")) * _PERCENT
    except ValueError:
        points = math.nan
    if not 0 < points <= _PERCENT**2 or abs(points - round(points)) > 1e-6:
        raise UsageError(f"{option}: {text!r}: percent above 0, at most 100, down to 0.01")
    return round(points)


def parse_gate(text: str) -> dict[str, Any]:
    """A gate's plain form; `show_gate` the other way round.

    :raises UsageError: it is none.
    """
    match = _GATE.fullmatch(text)
    words = {word for word in match["words"].split(",") if word} if match else set()
    if match is None or words - _WORDS:
        raise UsageError(f"--gate: {text!r}: expected {GATE_HELP}")
    number = match["number"]
    try:
        value = float(number.removesuffix("%")) / (_PERCENT if number.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"--gate: {text!r}: {number!r} is no number") from None
    if match["sign"] == ">=" and not match["metric"].startswith("score:"):
        raise UsageError(f"--gate: {text!r}: only a score:NAME can be asked to be at least")
    made: dict[str, Any] = {"metric": match["metric"], "at_least" if match["sign"] == ">=" else "tolerance": value}
    made["on_breach"] = "GATE_ACTION_HOLD" if "hold" in words else "GATE_ACTION_ROLL_BACK"
    made |= {name: True for name, word in (("must_hold", "must"), ("lower_is_better", "lower")) if word in words}
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


def _arm(text: str) -> dict[str, Any]:
    name, equals, rest = text.partition("=")
    version, colon, share = rest.rpartition(":")
    if not (name and equals and version and colon):
        raise UsageError(f"--arm: {text!r}: expected NAME=VERSION:PERCENT, such as b=weir-fast@2:20")
    return {"name": name, "model_version": version, "weight": parse_share(share, "--arm")}


def _lay_steps(spec: dict[str, Any], steps: str, duration: str, samples: int) -> None:
    if steps or not spec.get("steps"):
        spec["steps"] = [{"weight": parse_share(text.strip(), "--steps")} for text in (steps or STEPS).split(",")]
        if spec["steps"][-1]["weight"] == _PERCENT**2:
            # With everybody on the canary nothing is left to compare it with.
            raise UsageError("--steps: full traffic follows the last step by itself; leave 100 out")
    for step in spec["steps"]:
        if duration:
            step["min_duration"] = f"{parse_seconds(duration, '--step-duration'):g}s"
        if samples:
            step["min_samples"] = samples
