"""Pins of model versions."""

from __future__ import annotations

from collections.abc import Collection

from services.registry.policy.faults import Fault, check_text

MAX_REASON = 500


def check_pin(model_version: str, reason: str, *, versions: Collection[str]) -> Fault | None:
    """The first fault of a pin, or None.

    :param versions: "name@version" of the model versions that exist.
    """
    if model_version not in versions:
        return Fault("pin.model_version", f"no model version {model_version!r}")
    if not reason:
        return Fault("pin.reason", "a pin needs a reason: it is kept until somebody takes it away")
    return check_text("pin.reason", reason, MAX_REASON)
