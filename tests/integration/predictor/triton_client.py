"""What an unmodified tritonclient makes of a predictor; a process of its own, for its messages have the names of ours.

python triton_client.py ADDRESS     writes a JSON object
"""

import asyncio
import json
import sys

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

HEADERS = {"x-weir-tenant": "acme", "x-weir-scopes": "inference"}


def given(grpc, matrix):
    made = grpc.InferInput("features", list(matrix.shape), "FP32")
    made.set_data_from_numpy(matrix)
    return [made]


def refused(call):
    try:
        call()
    except InferenceServerException as error:
        return [error.status(), error.message()]
    return None


def synchronous(address, matrix):
    client = triton.InferenceServerClient(address)
    answer = client.infer(
        "m", given(triton, matrix), request_id="9", headers=HEADERS, priority=1, timeout=2_000_000, client_timeout=5.0
    )
    told = {
        "live": client.is_server_live(HEADERS),
        "ready": client.is_server_ready(HEADERS),
        "model_ready": [client.is_model_ready("m", version, HEADERS) for version in ("", "1")],
        "metadata": client.get_model_metadata("m", headers=HEADERS, as_json=True),
        "config": client.get_model_config("m", headers=HEADERS, as_json=True),
        "index": client.get_model_repository_index(headers=HEADERS, as_json=True),
        "server": client.get_server_metadata(HEADERS, as_json=True),
        "scores": answer.as_numpy("score").tolist(),
        "response": {"id": answer.get_response().id, "version": answer.get_response().model_version},
        "sequence": refused(
            lambda: client.infer("m", given(triton, matrix), headers=HEADERS, sequence_id=3, client_timeout=5.0)
        ),
        "load": refused(lambda: client.load_model("m", headers=HEADERS, client_timeout=5.0)),
        "shared": refused(lambda: client.get_system_shared_memory_status(headers=HEADERS, client_timeout=5.0)),
        "shape": refused(lambda: client.infer("m", given(triton, matrix[:, :2]), headers=HEADERS, client_timeout=5.0)),
    }
    told["statistics"] = client.get_inference_statistics("m", headers=HEADERS, as_json=True)
    client.close()
    return told


async def asynchronous(address, matrix):
    async with triton_aio.InferenceServerClient(address) as client:
        answers = await asyncio.gather(
            *(client.infer("m", given(triton_aio, row[None]), headers=HEADERS, client_timeout=5.0) for row in matrix)
        )
        return [answer.as_numpy("score").tolist()[0] for answer in answers]


def main():
    matrix = np.random.default_rng(7).normal(size=(5, 4)).astype(np.float32)
    told = synchronous(sys.argv[1], matrix)
    told["one by one"] = asyncio.run(asynchronous(sys.argv[1], matrix))
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
