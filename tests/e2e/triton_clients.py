"""What NVIDIA's four unmodified clients make of a mesh; in a process of its own, since their messages have the names of
ours, of which a process can have but one kind.

python -P triton_clients.py '{"http": ADDRESS, "grpc": ADDRESS, "ca": PATH, "key": KEY, "cert": PATH, "cert_key": PATH}'

writes a JSON object. The blocking clients and the asynchronous ones do the same things, written once: what a client
gives is awaited where it can be. The certificate is a workload's: with it predictors are asked without an edge.
"""

import asyncio
import inspect
import json
import queue
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as tg
import tritonclient.grpc.aio as tga
import tritonclient.http as th
import tritonclient.http.aio as tha
from tritonclient.utils import InferenceServerException

ROWS = np.linspace(0, 30, 60, dtype=np.float32).reshape(2, 30)
TEXTS = np.array([b"the river rose after the rain", "Grüße vom Fluss".encode()], dtype=object)
MESH = "xds:///predictor.weir.internal"


def given(kind: Any, name: str, datatype: str, values: np.ndarray, **how: Any) -> list[Any]:
    """One input."""
    tensor = kind.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, **how)
    return [tensor]


def numbers(result: Any, name: str = "probability") -> list[float]:
    """An output."""
    return [float(each) for each in np.asarray(result.as_numpy(name)).ravel()]


async def done(answer: Any) -> Any:
    """The answer of a blocking client, or of an asynchronous one."""
    return await answer if inspect.isawaitable(answer) else answer


async def refusal(call: Callable[[], Any]) -> list[str]:
    """How it was refused."""
    try:
        await done(call())
    except InferenceServerException as error:
        return [str(error.status()), error.message()]
    return ["", "not refused"]


async def over_http(kind: Any, client: Any, key: str) -> dict[str, Any]:
    """An HTTP client."""

    def headers() -> dict[str, str]:  # it writes into those that it is given
        return {"authorization": f"Bearer {key}"}

    async def infer(inputs: list[Any], model: str = "cancer-gbdt", **how: Any) -> Any:
        return await done(client.infer(model, inputs, headers=headers(), **how))

    asked = given(kind, "features", "FP32", ROWS)
    words = given(kind, "features", "FP32", ROWS, binary_data=False)
    wanted = [kind.InferRequestedOutput("probability", binary_data=False)]
    many = given(kind, "features", "FP32", np.tile(ROWS, (100, 1)))
    compressed = []
    for coding in ("gzip", "deflate"):
        how = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
        compressed.append(numbers(await infer(many, **how))[:2])
    statistics = await done(client.get_inference_statistics("cancer-gbdt", headers=headers()))
    index = await done(client.get_model_repository_index(headers=headers()))
    return {
        "server": await done(client.get_server_metadata(headers=headers())),
        "live": await done(client.is_server_live(headers=headers())),
        "running": await done(client.is_server_ready(headers=headers())),
        "ready": [
            await done(client.is_model_ready("cancer-gbdt", headers=headers())),
            await done(client.is_model_ready("cancer-gbdt", "1", headers=headers())),
            await done(client.is_model_ready("cancer-gbdt", "99", headers=headers())),
        ],
        "metadata": await done(client.get_model_metadata("cancer-gbdt", headers=headers())),
        "config": (await done(client.get_model_config("cancer-gbdt", "1", headers=headers())))["name"],
        "index": sorted({each["name"] for each in index}),
        "statistics": len(statistics["model_stats"]),
        "binary": numbers(await infer(asked, request_id="r7")),
        "json": numbers(await infer(words, outputs=wanted, model_version="1")),
        "compressed": compressed,
        "texts": len((await infer(given(kind, "text", "BYTES", TEXTS), "topics")).as_numpy("topic")),
        "refused": [
            await refusal(lambda: client.infer("nothing", asked, headers=headers())),
            await refusal(
                lambda: client.infer("cancer-gbdt", given(kind, "features", "FP32", ROWS[:, :3]), headers=headers())
            ),
            await refusal(lambda: client.infer("cancer-gbdt", asked, headers=headers(), sequence_id=3)),
            await refusal(lambda: client.infer("cancer-gbdt", asked, headers={"authorization": "Bearer no"})),
            await refusal(lambda: client.get_system_shared_memory_status(headers=headers())),
        ],
    }


async def over_grpc(kind: Any, client: Any, key: str, streamed: Callable[..., Any]) -> dict[str, Any]:
    """A gRPC client; without a key, one that comes with a certificate."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    asked = given(kind, "features", "FP32", ROWS)

    async def infer(**how: Any) -> Any:
        return await done(client.infer("cancer-gbdt", asked, **{"headers": headers, **how}))

    index = await done(client.get_model_repository_index(headers=headers))
    statistics = await done(client.get_inference_statistics("cancer-gbdt", headers=headers))
    return {
        "server": (await done(client.get_server_metadata(headers=headers))).name,
        "live": await done(client.is_server_live(headers=headers)),
        "running": await done(client.is_server_ready(headers=headers)),
        "ready": [
            await done(client.is_model_ready("cancer-gbdt", headers=headers)),
            await done(client.is_model_ready("cancer-gbdt", "1", headers=headers)),
        ],
        "metadata": (await done(client.get_model_metadata("cancer-gbdt", headers=headers, as_json=True)))["inputs"],
        "config": (await done(client.get_model_config("cancer-gbdt", "1", headers=headers))).config.name,
        "index": sorted({each.name for each in index.models}),
        "statistics": len(statistics.model_stats),
        "plain": numbers(await infer()),
        "pinned": numbers(await infer(model_version="1")),
        "compressed": numbers(await infer(compression_algorithm="gzip")),
        "named": numbers(await infer(headers=headers | {"x-weir-model": "cancer-gbdt"})),
        "refused": [
            await refusal(
                lambda: client.infer("cancer-gbdt", asked, headers=headers | {"x-weir-model": "digits-torch"})
            ),
            await refusal(lambda: client.infer("nothing", asked, headers=headers)),
            await refusal(lambda: client.load_model("cancer-gbdt", headers=headers)),
            await refusal(lambda: client.infer("cancer-gbdt", asked, headers=headers, sequence_id=3)),
            await refusal(lambda: client.get_cuda_shared_memory_status(headers=headers)),
            await done(streamed(client, asked, headers)),
            await refusal(lambda: client.infer("cancer-gbdt", asked, headers={"authorization": "Bearer no"})),
        ],
    }


def streamed(client: Any, asked: list[Any], headers: dict[str, str]) -> list[str]:
    """How the blocking client's stream is refused."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put(error), headers=headers)
    with suppress(InferenceServerException):  # where the refusal is here before the request has gone
        client.async_stream_infer("cancer-gbdt", asked)
    error = answers.get(timeout=30)
    client.stop_stream()
    return [str(error.status()), error.message()] if error is not None else ["", "not refused"]


async def streamed_aio(client: Any, asked: list[Any], headers: dict[str, str]) -> list[str]:
    """How the asynchronous client's is."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "cancer-gbdt", "inputs": asked}

    try:
        async for _ in client.stream_infer(requests(), headers=headers):
            pass
    except grpc.aio.AioRpcError as error:
        return [str(error.code()), error.details() or ""]
    return ["", "not refused"]


async def many_at_once(http: Any, plain: Any, key: str) -> list[list[float]]:
    """The asynchronous clients, each with several requests at once."""
    headers = {"authorization": f"Bearer {key}"}
    first = [http.infer("cancer-gbdt", given(tha, "features", "FP32", ROWS), headers=dict(headers)) for _ in range(8)]
    second = [plain.infer("cancer-gbdt", given(tga, "features", "FP32", ROWS), headers=headers) for _ in range(8)]
    return [numbers(each) for each in await asyncio.gather(*first, *second)]


async def asynchronously(http: str, tls: dict[str, Any], workload: dict[str, Any], key: str) -> dict[str, Any]:
    """The asynchronous clients: over HTTP, over gRPC in plain, over TLS, and inside the mesh."""
    async with (
        tha.InferenceServerClient(http) as over,
        tga.InferenceServerClient(http) as plain,
        tga.InferenceServerClient(**tls) as safe,
        tga.InferenceServerClient(MESH, **workload) as inside,
    ):
        return {
            "http_aio": await over_http(tha, over, key),
            "grpc_aio": await over_grpc(tga, plain, key, streamed_aio),
            "tls_aio": await over_grpc(tga, safe, key, streamed_aio),
            "mesh_aio": await over_grpc(tga, inside, "", streamed_aio),
            "many": await many_at_once(over, plain, key),
        }


def main(http: str, grpc: str, ca: str, key: str, cert: str, cert_key: str) -> dict[str, Any]:
    """Everything; gRPC in plain, over TLS, and inside the mesh."""
    tls = {"url": grpc, "ssl": True, "root_certificates": ca}
    workload = {"ssl": True, "root_certificates": ca, "certificate_chain": cert, "private_key": cert_key}
    found = asyncio.run(asynchronously(http, tls, workload, key))
    over = th.InferenceServerClient(http)
    try:
        asked = given(th, "features", "FP32", ROWS)
        submitted = over.async_infer("cancer-gbdt", asked, headers={"authorization": f"Bearer {key}"})
        found["http"] = asyncio.run(over_http(th, over, key))
        found["submitted"] = numbers(submitted.get_result())
    finally:
        over.close()
    with (
        tg.InferenceServerClient(http) as plain,
        tg.InferenceServerClient(**tls) as safe,
        tg.InferenceServerClient(MESH, **workload) as inside,
    ):
        found["grpc"] = asyncio.run(over_grpc(tg, plain, key, streamed))
        found["tls"] = asyncio.run(over_grpc(tg, safe, key, streamed))
        found["mesh"] = asyncio.run(over_grpc(tg, inside, "", streamed))
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(sys.argv[1]))))
