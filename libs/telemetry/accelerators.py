"""Whose work takes the accelerators: seconds of engines' steps and of models' executions, shared among the members of
their batches, by tenant. Workers and predictors."""

from __future__ import annotations

from libs.telemetry.counter import FastCounter
from libs.telemetry.named import Named

MOST = 64
"""Tenants that a process shows by name at a time."""
_SECONDS = FastCounter(
    "weir_tenant_accelerator_seconds_total",
    "Time of steps and executions, shared equally among the sequences or rows of their batches, told at their end",
    ("tenant",),
)
_named = Named(MOST, _SECONDS.forget)


def used(tenant: str, seconds: float, now: float) -> None:
    """A tenant's sequence or prediction is over and took so much. `now`: seconds of a clock that does not go back."""
    if seconds:
        _SECONDS.labels(_named.label(tenant, now)).inc(seconds)
