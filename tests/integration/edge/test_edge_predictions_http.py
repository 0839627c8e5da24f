"""The Open Inference Protocol over HTTP through a real Envoy and edge-auth, asked by the unmodified `tritonclient`."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import ml_dtypes
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from tritonclient.utils import InferenceServerException

from libs.config import MAX_PREDICTION_BYTES
from tests.support.predictions import MODEL, PredictionEdge, prediction_edge

ONE = f"{MODEL}@1"
TRITON_GRPC = Path(__file__).parents[2] / "support" / "triton_grpc.py"
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PredictionEdge]:
    """A running edge with predictors that answer with their inputs."""
    async with prediction_edge(tmp_path_factory.mktemp("predictions-http")) as found:
        yield found


@pytest.fixture
def headers(edge: PredictionEdge) -> dict[str, str]:
    """A good key."""
    return {"authorization": f"Bearer {edge.tokens['acme']}"}


@pytest_asyncio.fixture(loop_scope="module")
async def http(edge: PredictionEdge, headers: dict[str, str]) -> AsyncIterator[httpx2.AsyncClient]:
    """A plain HTTP client with that key."""
    url = f"http://127.0.0.1:{edge.port}"
    async with httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=20) as client:
        yield client


Ask = Callable[[Callable[[triton_http.InferenceServerClient], Any]], Any]


@pytest_asyncio.fixture(loop_scope="module")
async def triton(edge: PredictionEdge) -> Ask:
    """Calls of NVIDIA's own HTTP client, which blocks."""

    async def ask(call: Callable[[triton_http.InferenceServerClient], Any]) -> Any:
        def run() -> Any:
            client = triton_http.InferenceServerClient(f"127.0.0.1:{edge.port}")
            try:
                return call(client)
            finally:
                client.close()

        return await asyncio.to_thread(run)

    return ask


def tensor(kind: Any, name: str, datatype: str, values: np.ndarray, **how: Any) -> Any:
    found = kind.InferInput(name, list(values.shape), datatype)
    found.set_data_from_numpy(values, **how)
    return found


def arrays() -> Iterator[tuple[str, np.ndarray]]:
    """One of every datatype."""
    yield "BOOL", np.array([[True, False, True]])
    for bits in (8, 16, 32, 64):
        yield f"UINT{bits}", np.array([0, 1, 2**bits - 1], dtype=f"u{bits // 8}")
        yield f"INT{bits}", np.array([[-(2 ** (bits - 1))], [2 ** (bits - 1) - 1]], dtype=f"i{bits // 8}")
    yield "FP16", np.array([0.5, -65504], dtype=np.float16)
    yield "BF16", np.array([0.5, -3.0], dtype=ml_dtypes.bfloat16)
    yield "FP32", np.array([np.nan, np.inf, -np.inf, 1e-45], dtype=np.float32)
    yield "FP64", np.array([[0.1, 5e-324]])
    yield "BYTES", np.array([b"", "Grüße".encode(), b"a,b"], dtype=object)


@pytest.mark.parametrize(("datatype", "values"), [*arrays()], ids=[name for name, _ in arrays()])
async def test_tensors_come_back_as_they_were_sent_in_binary_and_in_json(
    triton: Ask, headers: dict[str, str], datatype: str, values: np.ndarray
) -> None:
    for binary in (True, False):
        if not binary and datatype in ("FP16", "BF16"):
            continue

        def call(client: triton_http.InferenceServerClient, binary: bool = binary) -> np.ndarray:
            given = tensor(triton_http, "x", datatype, values, binary_data=binary)
            wanted = triton_http.InferRequestedOutput("x", binary_data=binary)
            # It writes into the headers that it is given.
            return client.infer(MODEL, [given], outputs=[wanted], headers=dict(headers)).as_numpy("x")

        found = await triton(call)
        assert found.shape == values.shape
        texts = datatype == "BYTES" and not binary
        np.testing.assert_array_equal(found, np.array([each.decode() for each in values]) if texts else values)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_bodies_and_answers_are_compressed_where_asked(
    edge: PredictionEdge, triton: Ask, headers: dict[str, str], coding: str
) -> None:
    values = np.arange(3000, dtype=np.float32)

    def call(client: triton_http.InferenceServerClient) -> Any:
        return client.infer(
            MODEL,
            [tensor(triton_http, "x", "FP32", values)],
            headers=headers,
            request_compression_algorithm=coding,
            response_compression_algorithm=coding,
        )

    np.testing.assert_array_equal((await triton(call)).as_numpy("x"), values)
    assert edge.predictors["1"].seen["content-encoding"] == coding


async def test_a_large_answer_is_compressed_and_a_small_one_is_not(http: httpx2.AsyncClient) -> None:
    for count, coding in ((2000, "gzip"), (2, None)):
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [count], "data": [1.5] * count}]}
        answer = await http.post(f"/v2/models/{MODEL}/infer", json=body, headers={"accept-encoding": "br, gzip"})
        assert answer.headers.get("content-encoding") == coding
        assert answer.json()["outputs"][0]["data"] == [1.5] * count
        assert answer.headers["content-type"] == "application/json"


async def test_the_path_names_the_model_and_a_version(edge: PredictionEdge, http: httpx2.AsyncClient) -> None:
    body = {"id": "r7", "inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]}
    for path, version in (
        (MODEL, "1"),
        (f"{MODEL}/versions/2", "2"),
        (f"{MODEL}@2", "2"),
        (f"{MODEL}%402", "2"),
        (f"{MODEL}@2/versions/2", "2"),
    ):
        # A header that says otherwise is not what is routed by.
        answer = await http.post(f"/v2/models/{path}/infer?q=1", json=body, headers={"x-weir-model": ONE})
        found = answer.json()
        assert (found["model_name"], found["model_version"]) == (f"predictor-{version}", f"{MODEL}@{version}"), path
        assert found["id"] == "r7"
        assert answer.headers["x-weir-arm"] == ""
    assert float(edge.predictors["2"].seen["x-request-start"].removeprefix("t=")) > 1.7e9
    assert "x-weir-estimated-tokens" not in edge.predictors["2"].seen


async def test_what_a_server_and_a_model_say_of_themselves(triton: Ask, headers: dict[str, str]) -> None:
    def call(client: triton_http.InferenceServerClient) -> list[Any]:
        return [
            client.is_server_live(headers=headers),
            client.is_server_ready(headers=headers),
            client.is_model_ready(MODEL, "1", headers=headers),
            client.is_model_ready("unknown", headers=headers),
            client.get_model_metadata(MODEL, "1", headers=headers),
            client.get_model_repository_index(headers=headers),
            client.get_inference_statistics(headers=headers)["model_stats"][0]["name"],
            client.get_inference_statistics(MODEL, "1", headers=headers)["model_stats"][0]["inference_count"],
        ]

    live, ready, model, unknown, metadata, index, everybody, count = await triton(call)
    assert (live, ready, model, unknown) == (True, True, True, False)
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert (metadata["name"], metadata["versions"]) == (MODEL, ["1"])
    assert index == [{"name": MODEL, "version": "1", "state": "READY", "reason": ""}]
    assert (everybody, count) == ("", 2**60)


async def test_errors_read_as_the_protocol_says_whoever_answers(
    edge: PredictionEdge, triton: Ask, http: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    x = np.zeros(1, np.float32)
    calls: list[tuple[str, str, Callable[[Any], Any]]] = [
        ("429", "too many rows", lambda c: c.infer("refused", [tensor(triton_http, "x", "FP32", x)], headers=headers)),
        ("401", "Incorrect API key", lambda c: c.get_model_metadata(MODEL, headers={"authorization": "Bearer no"})),
        ("501", "systemsharedmemory", lambda c: c.get_system_shared_memory_status(headers=headers)),
        ("501", "repository/models/m/load", lambda c: c.load_model("m", headers=headers)),
        ("501", "logging", lambda c: c.get_log_settings(headers=headers)),
    ]
    for status, text, call in calls:
        with pytest.raises(InferenceServerException) as refused:
            await triton(call)
        assert (refused.value.status(), text in refused.value.message()) == (status, True), refused.value
    refusal = await http.post("/v2/models/refused/infer", json={"inputs": []})
    assert (refusal.headers["retry-after"], refusal.headers["x-weir-reason"]) == ("3", "QUOTA_REQUESTS")
    # Envoy's own.
    for method, path, status in (
        ("DELETE", "/v2/models/x", 404),
        ("GET", "/v2x", 404),
    ):
        answer = await http.request(method, path)
        assert answer.status_code == status, path
        assert isinstance(answer.json()["error"], str if path != "/v2x" else dict), path


@pytest.mark.parametrize(
    ("body", "more", "word"),
    [
        (b"{", {}, "not JSON"),
        (b'{"inputs":[{"name":"x"}]}', {}, "datatype"),
        (b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[300]}]}', {}, "'x'"),
        (b'{"inputs":[]}', {"content-encoding": "br"}, "not br"),
        (b'{"inputs":[]}', {"content-encoding": "gzip, gzip"}, "one content coding of gzip, deflate, br, zstd"),
        (b'{"inputs":[]}', {"content-encoding": "gzip"}, "not gzip"),
        (gzip.compress(b"x" * (MAX_PREDICTION_BYTES + 5000), 1), {"content-encoding": "gzip"}, "more than"),
        (b'{"inputs":[]}', {"inference-header-content-length": "99"}, "number of bytes"),
    ],
)
async def test_a_bad_body_is_refused_and_says_where(
    http: httpx2.AsyncClient, body: bytes, more: dict[str, str], word: str
) -> None:
    answer = await http.post(f"/v2/models/{MODEL}/infer", content=body, headers=more)
    assert answer.status_code in (400, 413, 415)
    assert word in answer.json()["error"]


async def test_the_other_clients_of_nvidia_do_the_same(edge: PredictionEdge, headers: dict[str, str]) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    async with triton_http_aio.InferenceServerClient(f"127.0.0.1:{edge.port}") as client:
        assert await client.is_model_ready(MODEL, headers=headers)
        found = await client.infer(MODEL, [tensor(triton_http_aio, "x", "FP32", values)], headers=headers)
        np.testing.assert_array_equal(found.as_numpy("x"), values)


async def test_nvidias_grpc_clients_name_no_model_to_the_edge_and_are_answered_by_any(
    edge: PredictionEdge, headers: dict[str, str]
) -> None:
    told = json.dumps({"url": f"127.0.0.1:{edge.port}", "model": MODEL, "headers": headers})
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(TRITON_GRPC), told, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await child.communicate()
    assert child.returncode == 0, errors.decode()
    for answer in json.loads(out):
        assert answer == {"version": "", "same": True}
