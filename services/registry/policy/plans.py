"""What plans give, what is promised, and what tokens cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from services.registry.policy.faults import Fault, check_id
from services.registry.policy.models import TIERS
from services.registry.policy.tenants import MAX_WEIGHT

ROUTES = ("generate", "embed", "predict", "batch")
"""Routes that objectives are declared for."""
STREAMING = ("generate",)
"""Routes that have a first token, gaps between tokens, and streams that may break."""
OVER_QUOTA = (0, 1, 2)
"""Numbers of `weir.registry.v1.OverQuota`; 0 means refuse."""
MAX_STEPS = 8
MAX_ANSWER = 4000
"""Characters of a default answer."""
MAX_CACHE_SECONDS = 86400.0
MAX_OBJECTIVE_SECONDS = 86400.0
MAX_PRICE = 10**12
"""Micro-dollars per million tokens: a dollar per token. Keeps every sum of costs within 64 bits."""
_PRICED = tuple(f"{side}_{what}microusd_per_million" for what in ("", "cost_") for side in ("input", "output"))
_MAX_ENTRIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """A step of a ladder; only the fields of its `kind` are looked at. Fields as in `weir.registry.v1`."""

    kind: str
    """Name of the step in the proto's oneof; empty: none was chosen."""
    max_tokens: int = 0
    pressure: float = 0.0
    replacements: Mapping[str, str] | None = None
    """Of models or of pools."""
    max_age_seconds: float | None = None
    """None: unset."""
    text: str = ""


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """What is checked of a plan's policy; fields as in `weir.registry.v1.PlanPolicy`."""

    id: str
    weight: float
    over_quota: int
    kv_share: float
    ladder: Sequence[StepSpec]


@dataclass(frozen=True, slots=True)
class SloSpec:
    """What is checked of objectives; fields as in `weir.registry.v1.Slo`, times in seconds, None when unset."""

    route: str
    tier: str
    ttft_p95: float | None
    itl_p95: float | None
    e2e_p95: float | None
    e2e_p99: float | None
    availability: float
    stream_completion: float


@dataclass(frozen=True, slots=True)
class PriceSpec:
    """What is checked of a price; fields as in `weir.registry.v1.Price`."""

    model: str
    input_microusd_per_million: int
    output_microusd_per_million: int
    input_cost_microusd_per_million: int = 0
    output_cost_microusd_per_million: int = 0


def check_plan(spec: PlanSpec, *, models: Collection[str], pools: Collection[str]) -> Fault | None:
    """The first fault of a plan's policy, or None.

    :param models: names of aliases and of model versions that exist.
    :param pools: pools of model versions and of live workers.
    """
    if fault := check_id("plan.id", spec.id):
        return fault
    if not (math.isfinite(spec.weight) and 0.0 <= spec.weight <= MAX_WEIGHT):
        return Fault("plan.weight", f"plan.weight must be above 0 and at most {MAX_WEIGHT:g}; 0 means 1")
    if spec.over_quota not in OVER_QUOTA:
        return Fault("plan.over_quota", "plan.over_quota is not known")
    if not 0.0 <= spec.kv_share <= 1.0:
        return Fault("plan.kv_share", "plan.kv_share must be between 0 and 1; 0 means all")
    return _check_ladder(spec.ladder, models, pools)


def _check_ladder(ladder: Sequence[StepSpec], models: Collection[str], pools: Collection[str]) -> Fault | None:
    if len(ladder) > MAX_STEPS:
        return Fault("plan.ladder", f"at most {MAX_STEPS} steps")
    before: list[StepSpec] = []
    for number, step in enumerate(ladder):
        field = f"plan.ladder[{number}]"
        if before and before[-1].kind == "default_answer":
            return Fault(field, "nothing can follow a default answer, which always succeeds")
        if fault := _check_step(field, step, models, pools) or _check_order(field, step, before):
            return fault
        before.append(step)
    return None


def _check_step(field: str, step: StepSpec, models: Collection[str], pools: Collection[str]) -> Fault | None:
    field = f"{field}.{step.kind}"
    if step.kind == "cap_output":
        if step.max_tokens == 0:
            return Fault(f"{field}.max_tokens", "max_tokens must be at least 1")
        if not (math.isfinite(step.pressure) and step.pressure >= 0.0):
            return Fault(f"{field}.pressure", "pressure must be 0 or more")
        return None
    if step.kind == "smaller_model":
        return _check_replacements(f"{field}.models", step.replacements, models, "alias or model version")
    if step.kind == "cpu_fallback":
        return _check_replacements(f"{field}.pools", step.replacements, pools, "pool")
    if step.kind == "cached_answer":
        if step.max_age_seconds is not None and not 0.0 < step.max_age_seconds <= MAX_CACHE_SECONDS:
            return Fault(f"{field}.max_age", "max_age must be positive and at most a day")
        return None
    if step.kind == "default_answer":
        printable = step.text.replace("\n", "").isprintable()
        if not (step.text.strip() and len(step.text) <= MAX_ANSWER and printable):
            return Fault(f"{field}.text", f"text must have 1 to {MAX_ANSWER} characters, none of them control ones")
        return None
    return Fault(field.rstrip("."), "a step says what is given up")


def _check_replacements(field: str, given: Mapping[str, str] | None, known: Collection[str], what: str) -> Fault | None:
    if not given or len(given) > _MAX_ENTRIES:
        return Fault(field, f"between 1 and {_MAX_ENTRIES} entries are needed")
    for name in sorted(given):
        for each in (name, given[name]):
            if each not in known:
                return Fault(f"{field}[{name}]", f"no {what} {each!r}")
        if given[name] == name:
            return Fault(f"{field}[{name}]", f"{name!r} cannot stand in for itself")
    return None


def _check_order(field: str, step: StepSpec, before: Sequence[StepSpec]) -> Fault | None:
    same = [each for each in before if each.kind == step.kind]
    if not same:
        return None
    if step.kind != "cap_output":
        return Fault(field, f"{step.kind} appears twice")
    if step.max_tokens >= same[-1].max_tokens:
        return Fault(f"{field}.cap_output.max_tokens", "a later cap must be lower than the one before it")
    return None


def check_slo(spec: SloSpec) -> Fault | None:
    """The first fault of objectives, or None. Objectives that declare nothing are fine: they withdraw those before."""
    if spec.route not in ROUTES:
        return Fault("slo.route", f"slo.route must be one of {', '.join(ROUTES)}")
    if spec.tier != "*" and spec.tier not in TIERS:
        return Fault("slo.tier", f"slo.tier must be '*' or one of {', '.join(TIERS)}")
    for name in ("ttft_p95", "itl_p95", "e2e_p95", "e2e_p99"):
        seconds: float | None = getattr(spec, name)
        if seconds is not None and not 0.0 < seconds <= MAX_OBJECTIVE_SECONDS:
            return Fault(f"slo.{name}", f"slo.{name} must be positive and at most a day")
    for name in ("availability", "stream_completion"):
        if not 0.0 <= getattr(spec, name) < 1.0:
            # An objective of 1 has no error budget: every single failure would exhaust it.
            return Fault(f"slo.{name}", f"slo.{name} must be below 1; 0 declares nothing")
    if spec.route not in STREAMING:
        for name in ("ttft_p95", "itl_p95", "stream_completion"):
            if getattr(spec, name):
                return Fault(f"slo.{name}", f"slo.{name} is for streams ({', '.join(STREAMING)})")
    return _check_consistent(spec)


def _check_consistent(spec: SloSpec) -> Fault | None:
    pairs = (("e2e_p95", "e2e_p99"), ("ttft_p95", "e2e_p95"), ("ttft_p95", "e2e_p99"))
    for smaller, larger in pairs:
        low, high = getattr(spec, smaller), getattr(spec, larger)
        if low is not None and high is not None and low > high:
            return Fault(f"slo.{larger}", f"slo.{larger} must not be below slo.{smaller}")
    return None


def check_price(spec: PriceSpec, *, models: Collection[str]) -> Fault | None:
    """The first fault of a price, or None.

    :param models: names of aliases and of model versions that exist.
    """
    if spec.model != "*" and spec.model not in models:
        return Fault("price.model", f"no alias or model version {spec.model!r}; use '*' for all")
    for name in _PRICED:
        if getattr(spec, name) > MAX_PRICE:
            return Fault(f"price.{name}", f"{name} must be at most {MAX_PRICE}")
    return None
