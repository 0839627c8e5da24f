"""What plans give, what is promised, and what tokens cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from itertools import islice
from typing import TYPE_CHECKING, Any

from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks.bounds import (
    MAX_WEIGHT,
    UP_TO_A_DAY,
    check_choice,
    check_count,
    check_duration,
    check_enum,
    check_not_negative,
    check_range,
    entry,
    seconds_of,
    shown,
)
from libs.resources.checks.faults import Fault, check_id
from libs.resources.checks.models import TIERS
from libs.resources.checks.predictions import PROFILES

if TYPE_CHECKING:
    from libs.resources.snapshot import RegistrySnapshot

ROUTES = ("generate", "embed", "predict", "batch")
"""Routes that objectives are declared for."""
STREAMING = ("generate",)
"""Routes that have a first token, gaps between tokens, and streams that may break."""
MAX_STEPS = 8
MAX_ANSWER = 4000
"""Characters of a default answer."""
MAX_PRICE = 10**12
"""Micro-dollars per million tokens or rows: a dollar per token. Keeps every sum of costs within 64 bits."""
_PRICED = tuple(f"{side}_{what}microusd_per_million" for what in ("", "cost_") for side in ("input", "output", "row"))
_OF_STREAMS = ("ttft_p95", "itl_p95", "stream_completion")
_IN_ORDER = (("e2e_p95", "e2e_p99"), ("ttft_p95", "e2e_p95"), ("ttft_p95", "e2e_p99"))
"""Objectives of which the second must not be below the first."""
_MAX_ENTRIES = 100


def check_plan(message: pb.PlanPolicy, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of a plan's policy."""
    yield from check_id("metadata.name", message.id)
    yield from check_range("spec.weight", message, 0, MAX_WEIGHT)
    yield from check_enum("spec.over_quota", message)
    yield from check_range("spec.kv_share", message, 0, 1)
    yield from check_count("spec.ladder", message.ladder, MAX_STEPS)
    before: dict[str, pb.DegradationStep] = {}
    for number, step in enumerate(message.ladder[:MAX_STEPS]):
        path = f"spec.ladder[{number}]"
        kind = step.WhichOneof("step")
        if kind is None:
            yield Fault(path, "a step says what is given up")
            continue
        yield from _check_order(path, kind, step, before)
        yield from _STEPS[kind](f"{path}.{kind}", getattr(step, kind), snapshot)
        before[kind] = step


def _check_order(
    path: str, kind: str, step: pb.DegradationStep, before: Mapping[str, pb.DegradationStep]
) -> Iterator[Fault]:
    if "default_answer" in before:
        yield Fault(path, "nothing can follow a default answer, which always succeeds")
    elif kind in before and kind != "cap_output":
        yield Fault(path, f"{kind} appears twice")
    elif kind in before and step.cap_output.max_tokens >= before[kind].cap_output.max_tokens:
        yield Fault(f"{path}.cap_output.max_tokens", "a later cap must be lower than the one before it")


def _check_cap(path: str, step: pb.CapOutput, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    if step.max_tokens == 0:
        yield Fault(f"{path}.max_tokens", "must be at least 1")
    yield from check_not_negative(f"{path}.pressure", step)


def _check_smaller(path: str, step: pb.SmallerModel, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    yield from _check_replacements(f"{path}.models", step.models)


def _check_fallback(path: str, step: pb.CpuFallback, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    field, pools = f"{path}.pools", _pools(snapshot)
    yield from _check_replacements(field, step.pools)
    for pool, instead in islice(sorted(step.pools.items()), _MAX_ENTRIES):
        for each in (pool, instead):
            if each not in pools:
                yield Fault(entry(field, pool), f"no pool {shown(each)}")


def _check_cached(path: str, step: pb.CachedAnswer, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    yield from check_duration(f"{path}.max_age", step, UP_TO_A_DAY)


def _check_default(path: str, step: pb.DefaultAnswer, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    printable = step.text.replace("\n", "").isprintable()
    if not (step.text.strip() and len(step.text) <= MAX_ANSWER and printable):
        yield Fault(f"{path}.text", f"must have 1 to {MAX_ANSWER} characters, none of them control ones")


_STEPS: Mapping[str, Callable[[str, Any, RegistrySnapshot], Iterator[Fault]]] = {
    "cap_output": _check_cap,
    "smaller_model": _check_smaller,
    "cached_answer": _check_cached,
    "default_answer": _check_default,
    "cpu_fallback": _check_fallback,
}


def _check_replacements(field: str, given: Mapping[str, str]) -> Iterator[Fault]:
    yield from check_count(field, given, _MAX_ENTRIES, least=1)
    for name, instead in islice(sorted(given.items()), _MAX_ENTRIES):
        if not (name and instead):
            yield Fault(entry(field, name), "names nothing")
        elif name == instead:
            yield Fault(entry(field, name), f"{shown(name)} cannot stand in for itself")


def _pools(snapshot: RegistrySnapshot) -> Set[str]:
    declared = {version.pool for version in snapshot.model_versions.values()}
    return declared | {worker.pool for worker in snapshot.endpoints_of("worker")}


def check_slo(message: pb.Slo, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of objectives. Those that declare nothing are fine: they withdraw what "*" says."""
    yield from check_choice("metadata.name", message.route, ROUTES)
    yield from check_choice("metadata.name", message.tier, ("*", *TIERS, *PROFILES))
    for name in ("ttft_p95", "itl_p95", "e2e_p95", "e2e_p99"):
        yield from check_duration(f"spec.{name}", message, UP_TO_A_DAY)
    for name in ("availability", "stream_completion"):
        if not 0.0 <= getattr(message, name) < 1.0:
            # An objective of 1 has no error budget: every single failure would exhaust it.
            yield Fault(f"spec.{name}", "must be below 1; 0 declares nothing")
    if message.route in ROUTES and message.route not in STREAMING:
        declared = {field.name for field, _ in message.ListFields()}
        for name in _OF_STREAMS:
            if name in declared:
                yield Fault(f"spec.{name}", f"is for streams ({', '.join(STREAMING)})")
    yield from _check_consistent(message)


def _check_consistent(message: pb.Slo) -> Iterator[Fault]:
    for smaller, larger in _IN_ORDER:
        low, high = seconds_of(message, smaller), seconds_of(message, larger)
        if low is not None and high is not None and low > high:
            yield Fault(f"spec.{larger}", f"must not be below {smaller}")


def check_price(message: pb.Price, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of a price."""
    for name in _PRICED:
        yield from check_range(f"spec.{name}", message, 0, MAX_PRICE)
    if message.cached_input_microusd_per_million > message.input_microusd_per_million:
        # What is reserved before anybody knows what is cached has to be enough.
        yield Fault("spec.cached_input_microusd_per_million", "must not be above input_microusd_per_million")
