"""What NVIDIA's four unmodified clients make of a mesh; in a process of its own, since their messages have the names of
ours, of which a process can have but one kind.

python -P triton_clients.py '{"http": ADDRESS, "grpc": ADDRESS, "ca": PATH, "key": KEY}'     writes a JSON object
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as tg
import tritonclient.grpc.aio as tga
import tritonclient.http as th
import tritonclient.http.aio as tha
from tritonclient.utils import InferenceServerException

ROWS = np.linspace(0, 30, 60, dtype=np.float32).reshape(2, 30)
TEXTS = np.array([b"the river rose after the rain", "Grüße vom Fluss".encode()], dtype=object)


def given(kind: Any, name: str, datatype: str, values: np.ndarray, **how: Any) -> list[Any]:
    """One input."""
    tensor = kind.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, **how)
    return [tensor]


def numbers(result: Any, name: str = "probability") -> list[float]:
    """An output."""
    return [float(each) for each in np.asarray(result.as_numpy(name)).ravel()]


def refusal(call: Any) -> list[str]:
    """How it was refused."""
    try:
        call()
    except InferenceServerException as error:
        return [str(error.status()), error.message()]
    return ["", "not refused"]


def over_http(url: str, key: str) -> dict[str, Any]:
    """The blocking HTTP client."""

    def headers() -> dict[str, str]:  # it writes into those that it is given
        return {"authorization": f"Bearer {key}"}

    client = th.InferenceServerClient(url)
    try:
        asked = given(th, "features", "FP32", ROWS)
        wanted = [th.InferRequestedOutput("probability", binary_data=False)]
        many = given(th, "features", "FP32", np.tile(ROWS, (100, 1)))
        submitted = client.async_infer("cancer-gbdt", asked, headers=headers())
        return {
            "server": client.get_server_metadata(headers=headers()),
            "live": client.is_server_live(headers=headers()) and client.is_server_ready(headers=headers()),
            "ready": [
                client.is_model_ready("cancer-gbdt", headers=headers()),
                client.is_model_ready("cancer-gbdt", "1", headers=headers()),
                client.is_model_ready("cancer-gbdt", "99", headers=headers()),
            ],
            "metadata": client.get_model_metadata("cancer-gbdt", headers=headers()),
            "config": client.get_model_config("cancer-gbdt", "1", headers=headers())["name"],
            "index": sorted({each["name"] for each in client.get_model_repository_index(headers=headers())}),
            "statistics": len(client.get_inference_statistics("cancer-gbdt", headers=headers())["model_stats"]),
            "binary": numbers(client.infer("cancer-gbdt", asked, headers=headers(), request_id="r7")),
            "asynchronous": numbers(submitted.get_result()),
            "json": numbers(
                client.infer(
                    "cancer-gbdt",
                    given(th, "features", "FP32", ROWS, binary_data=False),
                    outputs=wanted,
                    model_version="1",
                    headers=headers(),
                )
            ),
            "compressed": [
                numbers(
                    client.infer(
                        "cancer-gbdt",
                        many,
                        headers=headers(),
                        request_compression_algorithm=coding,
                        response_compression_algorithm=coding,
                    )
                )[:2]
                for coding in ("gzip", "deflate")
            ],
            "texts": len(
                client.infer("topics", given(th, "text", "BYTES", TEXTS), headers=headers()).as_numpy("topic")
            ),
            "refused": [
                refusal(lambda: client.infer("nothing", asked, headers=headers())),
                refusal(
                    lambda: client.infer("cancer-gbdt", given(th, "features", "FP32", ROWS[:, :3]), headers=headers())
                ),
                refusal(lambda: client.infer("cancer-gbdt", asked, headers=headers(), sequence_id=3)),
                refusal(lambda: client.infer("cancer-gbdt", asked, headers={"authorization": "Bearer no"})),
                refusal(lambda: client.get_system_shared_memory_status(headers=headers())),
            ],
        }
    finally:
        client.close()


def over_grpc(client: tg.InferenceServerClient, key: str) -> dict[str, Any]:
    """The blocking gRPC client."""
    headers = {"authorization": f"Bearer {key}"}
    asked = given(tg, "features", "FP32", ROWS)
    return {
        "live": client.is_server_live(headers=headers) and client.is_server_ready(headers=headers),
        "ready": [
            client.is_model_ready("cancer-gbdt", headers=headers),
            client.is_model_ready("cancer-gbdt", "1", headers=headers),
        ],
        "metadata": client.get_model_metadata("cancer-gbdt", headers=headers, as_json=True)["inputs"],
        "config": client.get_model_config("cancer-gbdt", "1", headers=headers).config.name,
        "index": sorted({each.name for each in client.get_model_repository_index(headers=headers).models}),
        "plain": numbers(client.infer("cancer-gbdt", asked, headers=headers)),
        "pinned": numbers(client.infer("cancer-gbdt", asked, model_version="1", headers=headers)),
        "compressed": numbers(client.infer("cancer-gbdt", asked, headers=headers, compression_algorithm="gzip")),
        "named": numbers(client.infer("cancer-gbdt", asked, headers=headers | {"x-weir-model": "cancer-gbdt"})),
        "refused": [
            refusal(lambda: client.infer("cancer-gbdt", asked, headers=headers | {"x-weir-model": "digits-torch"})),
            refusal(lambda: client.infer("nothing", asked, headers=headers)),
            refusal(lambda: client.load_model("cancer-gbdt", headers=headers)),
            refusal(lambda: client.infer("cancer-gbdt", asked, headers={"authorization": "Bearer no"})),
        ],
    }


async def asynchronously(http: str, grpc: str, key: str) -> dict[str, Any]:
    """The asynchronous ones, many at once."""
    headers = {"authorization": f"Bearer {key}"}
    async with tha.InferenceServerClient(http) as over_http, tga.InferenceServerClient(grpc) as plain:
        first = [
            over_http.infer("cancer-gbdt", given(tha, "features", "FP32", ROWS), headers=dict(headers))
            for _ in range(8)
        ]
        second = [plain.infer("cancer-gbdt", given(tga, "features", "FP32", ROWS), headers=headers) for _ in range(8)]
        found = await asyncio.gather(*first, *second)
    return {"all": [numbers(each) for each in found]}


def main(http: str, grpc: str, ca: str, key: str) -> dict[str, Any]:
    """Everything; gRPC once in plain and once over TLS."""
    with tg.InferenceServerClient(http) as plain, tg.InferenceServerClient(grpc, ssl=True, root_certificates=ca) as tls:
        return {
            "http": over_http(http, key),
            "grpc": over_grpc(plain, key),
            "tls": over_grpc(tls, key),
            "aio": asyncio.run(asynchronously(http, http, key)),
        }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(sys.argv[1]))))
