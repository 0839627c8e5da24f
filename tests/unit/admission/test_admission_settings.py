"""Admission's settings: what is refused, and that the policy's limits are a table of theirs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from libs.config import ConfigError, load
from services.admission.config import Settings
from services.admission.policy.limits import Limits


@pytest.mark.parametrize(("field", "value"), [("settle_seconds", -1.0), ("level_ttl", 0.5), ("tenure_seconds", 0.0)])
def test_settings_that_make_no_sense_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Settings(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("output_reserve", 1.5),
        ("reserved_share", 0.0),
        ("reserved_share", 1.0),
        ("burst_seconds", -1.0),
        ("wait_caution", 0.0),
        ("wait_caution", 1.1),
        ("preempt_after", -1.0),
        ("preempt_interval", -0.1),
        ("shadow_room", 0.9),
        ("ttl_shadow", -1.0),
        ("report_fresh", 9.0),
    ],
)
def test_limits_that_make_no_sense_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Limits(**{field: value})  # type: ignore[arg-type]


def test_d8_limits_are_declared_once_and_set_in_a_table_of_their_own(tmp_path: Path) -> None:
    assert not set(Limits.__struct_fields__) & set(Settings.__struct_fields__)
    assert Settings().limits == Limits()
    file = tmp_path / "admission.json"
    file.write_bytes(msgspec.json.encode({"limits": {"max_bypass": 3, "placement": {"zone_spill": 0.5}}}))
    limits = load(Settings, ["--config", str(file)], {}).limits
    assert (limits.max_bypass, limits.placement.zone_spill) == (3, 0.5)
    file.write_bytes(msgspec.json.encode({"limits": {"output_reserve": 7}}))
    with pytest.raises(ConfigError, match=r"output_reserve must be 0 to 1 - at `\$\.limits`"):
        load(Settings, ["--config", str(file)], {})
