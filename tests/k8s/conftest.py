"""What the tests of the manifests share: kustomize, out of Debian's package, and what it renders."""

from __future__ import annotations

import functools
import os
import subprocess
from typing import Any

import pytest
import yaml

from tests.support import engine
from tests.support.engine import ROOT

OVERLAYS = ("dev", "ci", "prod")
# They run in the engine's namespaces, started by test_cluster.py.
collect_ignore = [] if os.environ.get("WEIR_INSIDE_ENGINE") else ["inside"]


@pytest.fixture(scope="session", autouse=True)
def tools() -> None:
    """What bin/k8s-env fetches is there."""
    engine.require(ROOT / "bin" / "k8s-env")


@functools.cache
def render(folder: str) -> str:
    """What `kustomize build` prints for a folder of k8s/."""
    tool = ROOT / "build" / "tools" / "kustomize" / "usr" / "bin" / "kustomize"
    done = subprocess.run((tool, "build", str(ROOT / "k8s" / folder)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def documents(overlay: str) -> list[dict[str, Any]]:
    """An overlay's documents."""
    return read(render(f"overlays/{overlay}"))


def read(text: str) -> list[dict[str, Any]]:
    """Documents of YAML."""
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]
