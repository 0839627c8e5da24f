"""Settings of all tests.

Hypothesis: the gate draws the same examples every time, so that a red run can be repeated and a slow machine is no
failure. `HYPOTHESIS_PROFILE=explore make test` draws new ones; do that before trusting a change to a decision core.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

# Several test processes share the cores: torch's threads of one would spin on those that another needs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

APART = "tests/integration/loadtest/test_benches.py"
"""The file whose tests share nothing and take a minute each."""


E2E = "tests/e2e/"
FIRST = (APART, "tests/e2e/test_replicas.py", E2E)
"""What takes longest, in this order: otherwise one core has nothing left to do while the others run it."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first."""
    items.sort(key=lambda item: next((n for n, part in enumerate(FIRST) if item.nodeid.startswith(part)), len(FIRST)))


class ByFile(LoadScopeScheduling):
    """The tests of a file share a process, and with it what is set up once for all of them; so do the end-to-end tests
    of all files that have no mesh of their own."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file == APART:
            return nodeid
        return E2E if file.startswith(E2E) and not own_mesh(file) else file


@cache
def own_mesh(file: str) -> bool:
    """Whether a file of end-to-end tests starts a mesh."""
    return "with Mesh(" in (Path(__file__).parents[1] / file).read_text(encoding="utf-8")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Who runs what (`-n 2`)."""
    return ByFile(config, log)
