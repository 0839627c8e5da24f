"""Settings of all tests.

Hypothesis: the gate draws the same examples every time, so that a red run can be repeated and a slow machine is no
failure. `HYPOTHESIS_PROFILE=explore make test` draws new ones; do that before trusting a change to a decision core.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

APART = "tests/integration/loadtest/test_benches.py"
"""The file whose tests share nothing and take a minute each."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: otherwise one core has nothing left to do while the other runs them."""
    items.sort(key=lambda item: not item.nodeid.startswith(APART))


class ByFile(LoadScopeScheduling):
    """The tests of a file share a process, and with it what is set up once for all of them."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file == APART else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Who runs what (`-n 2`)."""
    return ByFile(config, log)
