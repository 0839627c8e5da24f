"""A tenant bound to a region, on a mesh whose workers stand in two."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from tests.e2e.conftest import client_for
from tests.support.mesh import STREAMS_ONLY, Mesh, eventually

SETTINGS = (*STREAMS_ONLY, "*.region=eu", "worker-b.region=us")
ASK = [{"role": "user", "content": "Tell me about the river."}]


@pytest.fixture(scope="module")
def two_regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with Mesh(tmp_path_factory.mktemp("regions"), profile="simulated", settings=SETTINGS) as running:
        yield running


def zone(client: OpenAI, **extra: object) -> str:
    """Where a request was served; the refusal's code when it was not."""
    try:
        raw = client.chat.completions.with_raw_response.create(model="weir-fast", messages=ASK, max_tokens=2, **extra)
    except openai.APIStatusError as error:
        return str(error.code)
    return str(raw.headers["x-weir-zone"])


def bind(mesh: Mesh, tenant: str, *regions: str) -> None:
    mesh.weir("set", "tenants", tenant, f"allowed_regions=[{', '.join(regions)}]", "--reason", "the test")


def test_a_bound_tenant_is_served_in_its_regions_or_refused(two_regions: Mesh) -> None:
    mesh = two_regions
    with client_for(mesh, mesh.env["WEIR_KEY_GLOBEX"]) as bound, client_for(mesh, mesh.env["WEIR_KEY_ACME"]) as free:
        bind(mesh, "globex", "eu")
        # Before it is known everywhere, zone-b would do as well: it is known once many in a row stay at home.
        eventually(lambda: {zone(bound) for _ in range(10)} == {"zone-a"}, what="the regions in force")
        old = mesh.kill("worker-a")
        assert zone(free) in {"zone-a", "zone-b"}  # the other worker, or the same one come back
        # While its endpoint's lease lasts the worker is only away, and what it had begun waits for it; afterwards
        # nothing of the region is left.
        assert {zone(bound) for _ in range(20)} <= {"zone-a", "worker_lost", "no_workers", "region_not_allowed"}
        mesh.wait_back("worker-a", old)
        eventually(lambda: zone(bound) == "zone-a", what="service at home again")
        # The mesh itself stands in eu: a tenant that is bound elsewhere gets nothing at all.
        bind(mesh, "globex", "us")
        eventually(lambda: zone(bound) == "region_not_allowed", what="the refusal")
