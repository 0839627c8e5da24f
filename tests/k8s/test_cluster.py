"""The mesh of overlays/ci, run: the tests in tests/k8s/inside, in the engine's namespaces, where pods are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import engine

INSIDE = engine.ROOT / "tests" / "k8s" / "inside"


@pytest.mark.timeout(26 * engine.MINUTES)
def test_the_overlay_ci_runs() -> None:
    images = ("control", "records", "predictor", "edge", "etcd")
    engine.require(engine.ROOT / "bin" / "images", *images, timeout=10 * engine.MINUTES)
    argv = [engine.ENGINE, "run", sys.executable, "-m", "pytest", "-s", "-v", "-p", "no:cacheprovider", INSIDE]
    environment = {**os.environ, "WEIR_INSIDE_ENGINE": "1"}
    done = subprocess.run(argv, cwd=engine.ROOT, env=environment, text=True, timeout=15 * engine.MINUTES, check=False)
    assert done.returncode == 0
