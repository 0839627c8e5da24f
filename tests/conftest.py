"""Settings of all tests.

Hypothesis: the gate draws the same examples every time, so that a red run can be repeated and a slow machine is no
failure. `HYPOTHESIS_PROFILE=explore make test` draws new ones; do that before trusting a change to a decision core.
"""

from __future__ import annotations

import gc
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.workermanage import WorkerController

from tests.support.gate.scheduling import EnduringScheduling

settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

# Several test processes share the cores: torch's threads of one would spin on those that another needs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

E2E = "tests/e2e/"
APART = "tests/integration/loadtest/test_benches.py"
"""The file whose tests share nothing and take up to a minute each."""
ORDER = (
    "tests/e2e/simulated",
    "tests/e2e/replicas",
    E2E,
    "tests/drills/",
    APART,
    "tests/integration/loadtest/",
    "tests/security/test_b5_canaries.py",
    "tests/integration/release/",
    "tests/integration/",
    "tests/security/",
    "tests/contract/",
    "tests/unit/engine_torch/",
    "tests/unit/",
)
"""What takes long and mostly waits, down to what is short and computes. Some processes begin with the first, others
with the last: meshes leave much of the cores to the others, do not start all at once, and none is left for the end."""
FROM_THE_FRONT = 2
"""How many processes begin with the first."""


def from_the_end(worker: str) -> bool:
    """Whether a process, "gw0" and so on, begins with the last."""
    return int(worker.removeprefix("gw")) >= FROM_THE_FRONT


def pytest_configure(config: pytest.Config) -> None:
    """What computes leaves the cores to what somebody waits for."""
    if hasattr(config, "workerinput") and from_the_end(config.workerinput["workerid"]):
        os.nice(5)


def scope_of(nodeid: str) -> str:
    """The tests of a file share a process, and with it what is set up once for all of them; so do end-to-end tests with
    a mesh in common."""
    file = nodeid.partition("::")[0]
    if file == APART:
        return nodeid
    return scope_of_e2e(file) if file.startswith(E2E) else file


@cache
def scope_of_e2e(file: str) -> str:
    """By the mesh that a file's tests use: one of its own, a shared one by its name, or the usual one."""
    text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    if "with Mesh(" in text:
        return file
    return next((E2E + name for name in ("simulated", "replicas") if f"({name}: Mesh" in text), E2E)


gc.disable()


def pytest_collection_finish() -> None:
    """What was collected lives as long as the process: looking through it again and again was a fifth of its time."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((n for n, part in enumerate(ORDER) if scope_of(item.nodeid).startswith(part)), len(ORDER))

    items.sort(key=place)


class ByFile(EnduringScheduling):
    """Gives scopes to processes, to most of them in this order and to some from its end."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if from_the_end(node.gateway.id):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Who runs what (`-n 4 --dist loadscope`)."""
    return ByFile(config, log)
