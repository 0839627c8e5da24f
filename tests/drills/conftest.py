"""One overloaded mesh for all drills: real processes, simulated engines that are slow enough to be too few."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtest.overload.drills import SETTING
from loadtest.overload.meshes import overload_mesh
from loadtest.overload.setting import Site


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with overload_mesh(tmp_path_factory.mktemp("drills"), "mesh", SETTING) as running:
        yield running
