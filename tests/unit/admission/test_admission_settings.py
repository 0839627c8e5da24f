"""Admission's settings: what is refused, and that the policy gets all of them."""

from __future__ import annotations

import dataclasses

import pytest

from services.admission.config import Settings
from services.admission.policy.model import Limits


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("output_reserve", 1.5),
        ("reserved_share", 0.0),
        ("reserved_share", 1.0),
        ("wait_caution", 0.0),
        ("wait_caution", 1.1),
        ("preempt_after", -1.0),
        ("preempt_interval", -0.1),
        ("settle_seconds", -1.0),
        ("level_ttl", 0.5),
        ("rebalance_seconds", 0.0),
        ("report_fresh", 9.0),
    ],
)
def test_values_that_make_no_sense_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Settings(**{field: value})  # type: ignore[arg-type]


def test_what_is_set_is_what_the_policy_decides_by() -> None:
    names = {field.name for field in dataclasses.fields(Limits)} - {"ttl", "prefill_settle"}
    assert names <= set(Settings.__struct_fields__)
    changed = {name: getattr(Settings(), name) * 0.9 for name in names if isinstance(getattr(Settings(), name), float)}
    limits = Settings(**changed, discipline="fifo", max_bypass=3).limits()  # type: ignore[arg-type]
    assert {name: getattr(limits, name) for name in changed} == changed
    assert (limits.discipline, limits.max_bypass) == ("fifo", 3)
