"""Who may ask a predictor: Envoy's word, or a certificate; over real TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from weir.registry.v1 import registry_pb2 as pb

from libs.authority.identity import Identity
from libs.errors import Reason, WeirError, from_rpc_error
from libs.pki import issue
from libs.rpc import make_channel
from tests.support.predictor import EDGE, Rig, question, running, told

pytestmark = pytest.mark.asyncio(loop_scope="module")
JOBS, STRANGER, EDGE_PROXY = Identity("nightly-jobs"), Identity("stranger"), Identity("envoy")
ROW = [[0.5, -0.5, 1.0, 0.0]]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pki")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(pki: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    own = issue(pki, Identity("predictor", "predictor-a"))
    async with running(tmp_path_factory.mktemp("predictor"), tls=own) as rig:
        await rig.put(pb.Tenant(id="jobs", plan=pb.PLAN_PAID, workloads=[JOBS.spiffe]))
        await rig.pushed()
        await rig.loaded()
        yield rig


async def ask(rig: Rig, pki: Path, identity: Identity, headers: dict[str, str]) -> dict[str, object]:
    async with make_channel(rig.address, tls=issue(pki, identity), server_name="predictor.weir.internal") as channel:
        stub = GRPCInferenceServiceStub(channel)
        return told(await stub.ModelInfer(question(ROW), timeout=5, metadata=tuple(headers.items())))


async def refused(rig: Rig, pki: Path, identity: Identity, headers: dict[str, str]) -> WeirError:
    with pytest.raises((WeirError, grpc.aio.AioRpcError)) as caught:
        await ask(rig, pki, identity, headers)
    error = caught.value
    return error if isinstance(error, WeirError) else from_rpc_error(error)


async def test_the_edges_word_counts(rig: Rig, pki: Path) -> None:
    said = await ask(rig, pki, EDGE_PROXY, EDGE | {"x-weir-model-version": "m@1", "x-weir-arm": "canary"})
    assert (said["weir_version"], said["weir_arm"]) == ("m@1", "canary")
    assert (await refused(rig, pki, EDGE_PROXY, EDGE | {"x-weir-tenant": ""})).reason is Reason.UNAUTHENTICATED


async def test_a_registered_workload_is_its_tenant_whatever_its_headers_say(rig: Rig, pki: Path) -> None:
    forged = {"x-weir-tenant": "acme", "x-weir-model": "other", "x-weir-model-version": "other@1", "x-weir-arm": "x"}
    said = await ask(rig, pki, JOBS, forged)
    assert (said["weir_version"], said.get("weir_arm")) == ("m@1", None)


async def test_a_certificate_of_nobody_who_is_registered_opens_nothing(rig: Rig, pki: Path) -> None:
    assert (await refused(rig, pki, STRANGER, EDGE)).reason is Reason.UNAUTHENTICATED
