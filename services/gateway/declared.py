"""What the registry declares about plans and objectives, as the policies' plain data."""

from __future__ import annotations

from collections.abc import Mapping

from weir.registry.v1 import registry_pb2

from libs.deadlines import to_seconds
from services.gateway.policy.objectives import NOTHING, Objectives
from services.gateway.policy.plans import (
    CachedAnswer,
    CapOutput,
    CpuFallback,
    DefaultAnswer,
    Plan,
    SmallerModel,
    Step,
)

_DEFAULT_AGE = 60.0
"""Seconds that an answer may be old where the plan does not say."""


def plan_of(message: registry_pb2.PlanPolicy) -> Plan:
    """A plan's policy; steps of a kind that this build does not know are left out."""
    return Plan(
        weight=message.weight or 1.0,
        kv_share=message.kv_share,
        serve_over_quota=message.over_quota == registry_pb2.OVER_QUOTA_SERVE_IDLE,
        ladder=tuple(step for entry in message.ladder if (step := _step(entry)) is not None),
    )


def objectives_of(message: registry_pb2.Slo) -> Objectives:
    """Declared objectives."""
    return Objectives(
        ttft=to_seconds(message.ttft_p95) if message.HasField("ttft_p95") else None,
        itl=to_seconds(message.itl_p95) if message.HasField("itl_p95") else None,
        e2e_p95=to_seconds(message.e2e_p95) if message.HasField("e2e_p95") else None,
        e2e_p99=to_seconds(message.e2e_p99) if message.HasField("e2e_p99") else None,
        availability=message.availability > 0,
        stream_completion=message.stream_completion > 0,
    )


def objectives_for(declared: Mapping[tuple[str, str], Objectives], route: str, tier: str) -> Objectives:
    """What holds for a route and tier: its own declaration, or the one for every tier."""
    return declared.get((route, tier)) or declared.get((route, "*"), NOTHING)


def _step(message: registry_pb2.DegradationStep) -> Step | None:
    match message.WhichOneof("step"):
        case "cap_output":
            return CapOutput(message.cap_output.max_tokens, message.cap_output.pressure)
        case "smaller_model":
            return SmallerModel(dict(message.smaller_model.models))
        case "cached_answer":
            given = message.cached_answer
            return CachedAnswer(to_seconds(given.max_age) if given.HasField("max_age") else _DEFAULT_AGE)
        case "default_answer":
            return DefaultAnswer(message.default_answer.text)
        case "cpu_fallback":
            return CpuFallback(dict(message.cpu_fallback.pools))
        case _:
            return None
