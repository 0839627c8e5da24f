"""Settings of all tests.

Hypothesis: the gate draws the same examples every time, so that a red run can be repeated and a slow machine is no
failure. `HYPOTHESIS_PROFILE=explore make test` draws new ones; do that before trusting a change to a decision core.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests share a process (`--dist loadgroup`), except where each stands for itself: the longest files
    would keep one core busy while the other has nothing left to do."""
    for item in items:
        if item.get_closest_marker("apart") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
