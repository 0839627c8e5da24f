"""The router's settings reach the breakers, and senseless ones stop it from starting."""

from __future__ import annotations

import pytest

from services.router.app import build
from services.router.config import Settings


def test_breaker_settings_arrive() -> None:
    options = Settings(breaker_min_volume=7, breaker_open_for=2.0, breaker_probes=3).breaker_options()
    assert (options.min_volume, options.open_for, options.probes) == (7, 2.0, 3)


async def test_a_senseless_breaker_stops_the_start() -> None:
    with pytest.raises(ValueError, match="failure_rate"):
        await build(Settings(breaker_failure_rate=2.0))
