"""How large a prediction may be, over HTTP and gRPC, and what a stranger can make Envoy hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import grpc
import httpx2
import numpy as np
import pytest
import pytest_asyncio
from inference.open_inference_pb2 import ModelInferRequest
from weir.client import Client

from libs.config import MAX_PREDICTION_BYTES
from libs.errors import Reason, from_rpc_error
from services.controlplane.policy.config import EdgeConfig
from tests.support.fixtures.edge_fixtures import Edge
from tests.support.predictions import MODEL, PredictionEdge, prediction_edge

MIB = 1 << 20
INFER = f"/v2/models/{MODEL}/infer"
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def predictions(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PredictionEdge]:
    """A running edge with predictors that answer with their inputs."""
    async with prediction_edge(tmp_path_factory.mktemp("prediction-sizes")) as found:
        yield found


def binary(size: int) -> tuple[bytes, dict[str, str]]:
    """The body of a request with a tensor of so many bytes behind its JSON, and its headers."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [size // 4], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    values = np.arange(size // 4, dtype=np.float32).tobytes()
    return head + values, {"inference-header-content-length": str(len(head))}


def message(size: int) -> ModelInferRequest:
    """The same over gRPC."""
    asked = ModelInferRequest(model_name=MODEL, raw_input_contents=[bytes(size)])
    asked.inputs.add(name="x", datatype="FP32", shape=[size // 4])
    return asked


async def post(edge: PredictionEdge, body: bytes, headers: dict[str, str]) -> httpx2.Response:
    """The answer over HTTP."""
    key = {"authorization": f"Bearer {edge.tokens['acme']}"}
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
        return await client.post(f"http://127.0.0.1:{edge.port}{INFER}", content=body, headers={**key, **headers})


@pytest.mark.parametrize("mib", [1, 4, 15])
async def test_large_tensors_come_and_go_over_http(predictions: PredictionEdge, mib: int) -> None:
    body, headers = binary(mib * MIB)
    answer = await post(predictions, body, headers)
    assert answer.status_code == 200, answer.text
    length = int(answer.headers["inference-header-content-length"])
    assert answer.content[length:] == body[int(headers["inference-header-content-length"]) :]


async def test_large_tensors_come_and_go_as_json(predictions: PredictionEdge) -> None:
    data = [1.5] * (2 * MIB)
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(data)], "data": data}]}
    answer = await post(predictions, json.dumps(body, separators=(",", ":")).encode(), {})
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"][0]["data"] == data


@pytest.mark.parametrize("mib", [1, 4, 15])
async def test_large_tensors_come_and_go_over_grpc(predictions: PredictionEdge, mib: int) -> None:
    metadata = [("authorization", f"Bearer {predictions.tokens['acme']}")]
    answer = await predictions.stub.ModelInfer(message(mib * MIB), metadata=metadata, timeout=60)
    assert len(answer.raw_output_contents[0]) == mib * MIB


async def test_the_meshs_own_client_takes_a_large_answer(predictions: PredictionEdge) -> None:
    port = (await predictions.envoy.listeners())["edge-https"]
    key = predictions.tokens["acme"]
    async with Client(f"localhost:{port}", ca=str(predictions._pki / "ca.pem"), api_key=key) as client:
        answer = await client._predictions.ModelInfer(message(5 * MIB), metadata=client._metadata, timeout=60)
    assert len(answer.raw_output_contents[0]) == 5 * MIB


@pytest.mark.parametrize("mib", [17, 64])
async def test_a_body_beyond_the_bound_is_refused_over_http_and_hears_the_bound(
    predictions: PredictionEdge, mib: int
) -> None:
    """The answer comes while the rest is on its way, and the connection is closed: read by whoever looks meanwhile."""
    body, headers = binary(mib * MIB)
    headers |= {"authorization": f"Bearer {predictions.tokens['acme']}", "content-length": str(len(body))}
    reader, writer = await asyncio.open_connection("127.0.0.1", predictions.port)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST {INFER} HTTP/1.1\r\nhost: edge\r\n{head}\r\n".encode() + body)
    async with asyncio.timeout(60):
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
        said = json.loads(await reader.readexactly(length))
    writer.transport.abort()
    assert first.startswith("HTTP/1.1 413 ")
    assert str(MAX_PREDICTION_BYTES) in said["error"]


@pytest.mark.parametrize("model", [MODEL, ""])
@pytest.mark.parametrize("mib", [17, 64])
async def test_a_message_beyond_the_bound_is_refused_over_grpc_like_everything_else(
    predictions: PredictionEdge, mib: int, model: str
) -> None:
    named = [("x-weir-model", model)] if model else []
    metadata = [("authorization", f"Bearer {predictions.tokens['acme']}"), *named]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await predictions.stub.ModelInfer(message(mib * MIB), metadata=metadata, timeout=60)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    error = from_rpc_error(refused.value)
    assert (error.reason, error.limit) == (Reason.PAYLOAD_TOO_LARGE, "max_message_bytes")
    assert str(MAX_PREDICTION_BYTES + 4096) in error.message
    assert error.message == refused.value.details()


async def test_a_chat_has_the_smaller_bound(edge: Edge) -> None:
    async with httpx2.AsyncClient(trust_env=False, timeout=20) as client:
        headers = {"authorization": "Bearer good"}
        answer = await client.post(f"{edge.url}/v1/chat/completions", content=b"x" * 70_000, headers=headers)
    assert answer.status_code == 413
    error = answer.json()["error"]
    assert (error["code"], " 65536 bytes" in error["message"]) == ("payload_too_large", True)


async def test_of_a_stranger_envoy_holds_a_buffer_and_no_more(edge: Edge) -> None:
    """While somebody is asked who he is, and for as long as that takes."""
    auth = edge.upstreams.auth
    auth.hold, asked = asyncio.Event(), len(auth.seen)
    counted = "http.edge-http.downstream_"
    before = (await edge.envoy.counters(f"{counted}cx_rx_bytes_total"))[f"{counted}cx_rx_bytes_total"]
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.http_port)
    try:
        head = f"POST {INFER} HTTP/1.1\r\nhost: edge\r\nauthorization: Bearer bad\r\n"
        writer.write(f"{head}content-length: {MAX_PREDICTION_BYTES}\r\n\r\n".encode() + b"x" * MAX_PREDICTION_BYTES)
        await edge.envoy.wait_counter(f"{counted}flow_control_paused_reading_total", bool)
        assert len(auth.seen) == asked + 1
        after = (await edge.envoy.counters(f"{counted}cx_rx_bytes_total"))[f"{counted}cx_rx_bytes_total"]
        # What is read at once, beyond the buffer, is not what somebody else decides.
        assert after - before <= 4 * EdgeConfig().buffer_bytes
    finally:
        auth.hold.set()
        auth.hold = None
    assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
    writer.transport.abort()
