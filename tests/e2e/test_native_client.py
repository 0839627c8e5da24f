"""An internal service: the typed client and bare stubs over `xds:///` with mTLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from weir.client import Client, Parameters, Reason, Tls, WeirError
from weir.inference.v1 import inference_pb2, inference_pb2_grpc

from libs.config import TlsFiles
from libs.rpc import make_channel
from tests.support.mesh import Mesh

TARGET = "xds:///gateway.weir.internal"


def tls(mesh: Mesh) -> Tls:
    return Tls(ca=mesh.env["WEIR_CA"], cert=mesh.env["WEIR_CLIENT_CERT"], key=mesh.env["WEIR_CLIENT_KEY"])


@pytest.fixture
async def client(mesh: Mesh) -> AsyncIterator[Client]:
    async with Client(TARGET, tls=tls(mesh)) as connected:
        yield connected


async def test_a_stream_has_one_beginning_and_one_end(client: Client) -> None:
    greedy = Parameters(temperature=0, max_tokens=30)
    async with client.generate("weir-fast", "The river", parameters=greedy, timeout=60) as stream:
        assert stream.accepted is not None
        assert stream.accepted.model_version == "weir-fast@1"
        assert not stream.accepted.simulated
        text = "".join([piece.text async for piece in stream])
    assert stream.end is not None
    assert stream.end.finish_reason in (inference_pb2.FINISH_REASON_STOP, inference_pb2.FINISH_REASON_LENGTH)
    assert stream.end.usage.completion_tokens > 0
    assert stream.end.breakdown.total.ToTimedelta() >= stream.end.breakdown.time_to_first_token.ToTimedelta()
    whole = await client.complete("weir-fast", "The river", parameters=greedy, timeout=60)
    assert whole.text == text


async def test_a_cancel_frame_ends_it(client: Client) -> None:
    forever = Parameters(max_tokens=900, ignore_eos=True)
    async with client.generate("weir-fast", "The river", parameters=forever, timeout=60) as stream:
        count = 0
        async for _ in stream:
            count += 1
            if count == 3:
                await stream.cancel("enough")
    assert stream.end is not None
    assert stream.end.finish_reason == inference_pb2.FINISH_REASON_CANCELLED
    assert 3 <= stream.end.usage.completion_tokens < 900


async def test_the_deadline_is_an_outcome_of_its_own(client: Client) -> None:
    forever = Parameters(max_tokens=900, ignore_eos=True)
    told = ""
    try:
        async with client.generate("weir-quality", "The river", parameters=forever, timeout=0.8) as stream:
            async for _ in stream:
                pass
            told = inference_pb2.FinishReason.Name(stream.end.finish_reason) if stream.end else "nothing"
    except WeirError as error:  # the client's own clock was first
        told = error.reason.name
    assert told in ("FINISH_REASON_DEADLINE", Reason.DEADLINE_EXCEEDED.name)


async def test_embed_and_count(client: Client) -> None:
    embedded = await client.embed("weir-fast", ["a river", "a weir"], timeout=30)
    assert len(embedded.vectors) == 2
    assert embedded.prompt_tokens > 2
    chat = [{"role": "user", "content": "What is a weir?"}]
    counted = await client.count_tokens("weir-fast", chat, timeout=30)
    whole = await client.complete("weir-fast", chat, parameters=Parameters(max_tokens=1), timeout=30)
    assert counted == whole.accepted.prompt_tokens


async def test_errors_carry_their_reason(client: Client) -> None:
    with pytest.raises(WeirError) as caught:
        await client.complete("nothing", "x", timeout=10)
    assert caught.value.reason is Reason.MODEL_NOT_FOUND
    with pytest.raises(WeirError) as caught:
        await client.complete("weir-fast", "x", parameters=Parameters(max_tokens=0), timeout=10)
    assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, "max_tokens")


async def test_a_stranger_with_a_certificate_is_refused(mesh: Mesh) -> None:
    pki = mesh.state / "pki"
    stranger = TlsFiles(ca=str(pki / "ca.pem"), cert=str(pki / "audit.pem"), key=str(pki / "audit.key"))
    address = mesh.file()["services"]["gateway"]["address"]
    async with make_channel(address, tls=stranger, server_name="gateway.weir.internal") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        spec = inference_pb2.GenerationSpec(model="weir-fast", prompt="x")
        forged = [("x-weir-tenant", "acme"), ("x-weir-scopes", "inference")]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Complete(inference_pb2.CompleteRequest(spec=spec), timeout=10, metadata=forged)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_without_a_certificate_nobody_gets_in(mesh: Mesh) -> None:
    async with make_channel(mesh.file()["services"]["gateway"]["address"], tls=None) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CountTokens(inference_pb2.CountTokensRequest(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_grpc_through_the_public_edge(mesh: Mesh) -> None:
    target = mesh.env["WEIR_EDGE_TLS_URL"].removeprefix("https://")
    async with Client(target, ca=mesh.env["WEIR_CA"], api_key=mesh.env["WEIR_KEY_ACME"]) as public:
        done = await public.complete("weir-fast", "The river", parameters=Parameters(max_tokens=5), timeout=30)
        assert done.end.usage.completion_tokens == 5 or done.end.finish_reason == inference_pb2.FINISH_REASON_STOP
        async with public.generate("weir-fast", "The river", timeout=30) as stream:
            assert [piece async for piece in stream]
    async with Client(target, ca=mesh.env["WEIR_CA"], api_key="wk_nobody_nothing") as nobody:
        with pytest.raises(WeirError) as caught:
            await nobody.complete("weir-fast", "x", timeout=10)
        assert caught.value.reason is Reason.UNAUTHENTICATED


async def test_many_at_once(client: Client) -> None:
    async def one(seed: int) -> str:
        parameters = Parameters(max_tokens=20, seed=seed, temperature=1.0)
        return (await client.complete("weir-fast", "The river", parameters=parameters, timeout=60)).text

    together = await asyncio.gather(*(one(seed) for seed in range(16)))
    assert await one(3) == together[3]
