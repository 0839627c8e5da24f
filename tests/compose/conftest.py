"""The mesh of docker-compose.yml on an engine of the checkout's own: as it stands, with the demo models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compose.composed import Composed
from tests.support import engine


@pytest.fixture(scope="session")
def images() -> None:
    """The images are built, without a registry or a network."""
    engine.require(engine.ROOT / "bin" / "images")


@pytest.fixture(scope="session")
def mesh(images: None) -> Iterator[Composed]:
    """The mesh, up and seeded. Afterwards nothing of it is left."""
    composed = Composed()
    composed("down", "--volumes", "--remove-orphans")
    try:
        composed.up()
        yield composed
    finally:
        composed("--profile", "replicas", "down", "--volumes")
    assert engine.run("docker", "ps", "--all", "--quiet", "--filter", "label=com.docker.compose.project=weir") == ""
    assert engine.run("docker", "volume", "ls", "--quiet", "--filter", "label=com.docker.compose.project=weir") == ""
