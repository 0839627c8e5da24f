"""What the registry declares about plans, as the policies' plain data."""

from __future__ import annotations

from weir.registry.v1 import registry_pb2

from libs.catalog.plans import (
    CachedAnswer,
    CapOutput,
    CpuFallback,
    DefaultAnswer,
    Plan,
    SmallerModel,
    Step,
)
from libs.deadlines import to_seconds

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
