"""The time that a request has, and what is kept of it for the way back."""

from __future__ import annotations

import pytest
from google.protobuf import duration_pb2
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2

from libs.clock import ManualClock
from libs.errors import Reason
from services.gateway.request import broken_off, time_limit

seconds = st.floats(0.001, 1000)


def tenant(longest: float | None) -> registry_pb2.Tenant:
    found = registry_pb2.Tenant(id="t")
    if longest is not None:
        found.max_deadline.CopyFrom(duration_pb2.Duration(nanos=int(longest % 1 * 1e9), seconds=int(longest)))
    return found


@given(seconds, st.none() | seconds)
def test_e7_a_callers_own_time_outlasts_ours(remaining: float, longest: float | None) -> None:
    clock = ManualClock()
    time = time_limit(tenant(longest), remaining, 120.0, clock)
    now = clock.monotonic()
    assert now < time.deadline.at < time.latest < now + remaining
    assert time.given <= remaining
    if longest is None:
        assert time.given == remaining  # who gave the declared time was patient, whatever we keep of it
        assert now + remaining - time.deadline.at <= 0.2 + 1e-6


@given(seconds, st.none() | seconds)
def test_nobody_breaks_off_a_time_that_is_ours(default: float, longest: float | None) -> None:
    clock = ManualClock()
    time = time_limit(tenant(longest), None, default, clock)
    given_time = default if longest is None else min(default, longest)
    assert time.deadline.at - clock.monotonic() == pytest.approx(given_time, abs=1e-6)
    assert time.latest > time.deadline.at


@pytest.mark.parametrize(("later", "reason"), [(0.5, Reason.CANCELLED), (0.99, Reason.DEADLINE_EXCEEDED)])
def test_e7_a_call_that_is_broken_off_at_its_end_was_late(later: float, reason: Reason) -> None:
    clock = ManualClock()
    time = time_limit(tenant(None), 1.0, 120.0, clock)
    clock.advance(later)
    assert broken_off(time.latest, clock).reason is reason
