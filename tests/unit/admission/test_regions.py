"""A zone of two regions is nobody's."""

from __future__ import annotations

import pytest

from libs.errors import Reason, WeirError
from services.admission.policy.regions import ZoneRegions


def test_a_worker_of_another_region_than_its_zones_is_refused_until_those_are_gone() -> None:
    regions = ZoneRegions()
    regions.join("zone-a", "eu")
    regions.join("zone-a", "eu")
    regions.join("zone-b", "us")
    for stranger in ("us", ""):
        with pytest.raises(WeirError) as caught:
            regions.join("zone-a", stranger)
        assert (caught.value.reason, caught.value.limit) == (Reason.PERMISSION_DENIED, "region")
    regions.leave("zone-a", "eu")
    with pytest.raises(WeirError):
        regions.join("zone-a", "us")
    regions.leave("zone-a", "eu")
    regions.join("zone-a", "us")


def test_one_that_was_refused_leaves_nothing_behind() -> None:
    regions = ZoneRegions()
    regions.join("zone-a", "")
    with pytest.raises(WeirError):
        regions.join("zone-a", "eu")
    regions.leave("zone-a", "")
    regions.join("zone-a", "eu")
