"""Admission's limits for tests that look at one thing at a time."""

from __future__ import annotations

import math
from typing import Any

from services.admission.policy.limits import Limits
from services.admission.policy.model import QueueClass


def steady(**changes: Any) -> Limits:
    """Reports that do not age, and prompts that wait on workers for as long as they like; but for the `changes`."""
    return Limits(**{"report_fresh": 1e9, "report_stale": 2e9, "max_prefill_wait": math.inf, **changes})


def all_ttls(seconds: float) -> dict[str, float]:
    """The same longest wait for each class."""
    return {f"ttl_{queue_class.name.lower()}": seconds for queue_class in QueueClass}
