"""One mesh for all end-to-end tests: real Envoy, real etcd, real workers with the torch engine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.support.mesh import Mesh


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with Mesh(tmp_path_factory.mktemp("mesh")) as running:
        # gRPC reads this once, at the first xds:/// channel of the process.
        os.environ["GRPC_XDS_BOOTSTRAP"] = running.env["GRPC_XDS_BOOTSTRAP"]
        yield running


def client_for(mesh: Mesh, key: str) -> OpenAI:
    """An official client, without retries of its own: a test sees what the mesh answers."""
    return OpenAI(base_url=f"{mesh.env['WEIR_EDGE_URL']}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def acme(mesh: Mesh) -> Iterator[OpenAI]:
    with client_for(mesh, mesh.env["WEIR_KEY_ACME"]) as client:
        yield client


@pytest.fixture
def tiny(mesh: Mesh) -> Iterator[OpenAI]:
    with client_for(mesh, mesh.env["WEIR_KEY_TINY"]) as client:
        yield client
