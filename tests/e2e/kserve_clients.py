"""What KServe's two unmodified clients make of a mesh; run by the Python of `bin/kserve-env`, which has them.

python -P kserve_clients.py '{"http": URL, "plain": ADDRESS, "tls": ADDRESS, "ca": PATH, "key": KEY}'

writes a JSON object.
"""

import asyncio
import json
import logging
import sys
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

ROWS = np.linspace(0, 30, 60, dtype=np.float32).reshape(2, 30)
TEXTS = np.array([b"the river rose after the rain", "Grüße vom Fluss".encode()], dtype=object)


def asked(
    model: str, name: str, datatype: str, values: np.ndarray, *, binary: bool = True, **more: Any
) -> InferRequest:
    """A request of one input."""
    tensor = InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=binary)
    return InferRequest(model_name=model, infer_inputs=[tensor], **more)


def features(*, binary: bool = True, rows: np.ndarray = ROWS, model: str = "cancer-gbdt", **more: Any) -> InferRequest:
    """Rows for the trees."""
    return asked(model, "features", "FP32", rows, binary=binary, **more)


def numbers(answer: Any, name: str = "probability") -> list[float]:
    """An output."""
    return [float(each) for each in np.asarray(answer.get_output_by_name(name).as_numpy()).ravel()]


async def refusal(call: Any) -> list[str]:
    """How it was refused."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return [error.code().name, error.details() or ""]
    except httpx.HTTPStatusError as error:
        return [str(error.response.status_code), str(error)]
    return ["", "not refused"]


async def over_http(url: str, key: str) -> dict[str, Any]:
    """The HTTP client. It writes into the headers that it is given."""

    def headers() -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:

        async def infer(request: InferRequest, model: str = "cancer-gbdt") -> Any:
            return await client.infer(url, request, model_name=model, headers=headers())

        wanted = [RequestedOutput("probability", {"binary_data": True})]
        texts = await infer(asked("topics", "text", "BYTES", TEXTS), "topics")
        return {
            "live": await client.is_server_live(url, headers=headers()),
            "ready": await client.is_server_ready(url, headers=headers()),
            "models": [
                await client.is_model_ready(url, each, headers=headers()) for each in ("cancer-gbdt", "nothing")
            ],
            "binary": numbers(await infer(features())),
            "json": numbers(await infer(features(binary=False))),
            "raw": numbers(await infer(features(request_outputs=wanted))),
            "all raw": numbers(await infer(features(parameters={"binary_data_output": True}))),
            "texts": len(texts.get_output_by_name("topic").as_numpy()),
            "refused": [
                await refusal(infer(features(model="nothing"), "nothing")),
                await refusal(infer(features(rows=ROWS[:, :3]))),
                await refusal(client.infer(url, features(), "cancer-gbdt", headers={"authorization": "Bearer no"})),
            ],
        }


async def over_grpc(address: str, key: str, **how: Any) -> dict[str, Any]:
    """The gRPC client."""
    headers = [("authorization", f"Bearer {key}")]
    async with InferenceGRPCClient(address, **how) as client:

        async def infer(request: InferRequest) -> Any:
            return await client.infer(request, headers=headers)

        texts = await infer(asked("topics", "text", "BYTES", TEXTS))
        wanted = [RequestedOutput("probability", {"binary_data": True})]
        return {
            "live": await client.is_server_live(headers=headers),
            "ready": await client.is_server_ready(headers=headers),
            "models": [await client.is_model_ready("cancer-gbdt", headers=headers)],
            "binary": numbers(await infer(features())),
            "json": numbers(await infer(features(binary=False))),
            "raw": numbers(await infer(features(request_outputs=wanted))),
            "all raw": numbers(await infer(features(parameters={"binary_data_output": True}))),
            "texts": len(texts.get_output_by_name("topic").as_numpy()),
            "refused": [
                await refusal(infer(features(model="nothing"))),
                await refusal(infer(features(rows=ROWS[:, :3]))),
                await refusal(client.infer(features(), headers=[("authorization", "Bearer no")])),
            ],
        }


async def main(http: str, plain: str, tls: str, ca: str, key: str) -> dict[str, Any]:
    """Everything; gRPC once in plain and once over TLS."""
    return {
        "http": await over_http(http, key),
        "plain": await over_grpc(plain, key),
        "tls": await over_grpc(tls, key, use_ssl=True, root_certificates=ca),
    }


if __name__ == "__main__":
    logging.disable()  # it logs what is refused, whole
    sys.stdout.write(json.dumps(asyncio.run(main(**json.loads(sys.argv[1])))))
