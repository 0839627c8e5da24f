"""Three meshes for most end-to-end tests, with real Envoy and real etcd: one with the torch engine, one with simulated
engines for those that kill processes, one with two of what decides. tests/conftest.py says who shares them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.support.mesh import STREAMS_ONLY, Mesh


@pytest.fixture(scope="package")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with Mesh(tmp_path_factory.mktemp("mesh")) as running, pytest.MonkeyPatch.context() as patch:
        # For this process's xds:/// channels: gRPC reads it whenever it makes one and none to the same name is left.
        patch.setenv("GRPC_XDS_BOOTSTRAP", running.env["GRPC_XDS_BOOTSTRAP"])
        yield running


@pytest.fixture(scope="package")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    # A stream waits for its filter for as long as a restart takes: on a busy machine more than the five seconds.
    settings = (*STREAMS_ONLY, "worker.simulated.step_interval=0.02", "gateway.filter_grace=60")
    with Mesh(tmp_path_factory.mktemp("simulated"), profile="simulated", settings=settings) as running:
        yield running


@pytest.fixture(scope="package")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    # Time enough for Envoy to hear of a gateway that leaves on a machine that has much else to do.
    settings = (*STREAMS_ONLY, "gateway.lame_duck_seconds=3")
    with Mesh(tmp_path_factory.mktemp("replicas"), profile="overload", settings=settings) as running:
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
