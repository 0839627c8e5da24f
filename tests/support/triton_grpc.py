"""A process that asks for predictions with NVIDIA's gRPC clients, told how in JSON; it writes what came back as JSON.

They have messages of the same names as ours, of which a process can have but one kind. Start it with `-P`: its folder
has modules with names of Python's.
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def main(url: str, model: str, headers: dict[str, str]) -> list[dict[str, Any]]:
    """One prediction plain, one compressed, and one with the asynchronous client."""
    with triton.InferenceServerClient(url) as client:
        answers = [
            client.infer(model, given(), headers=headers, compression_algorithm=compression)
            for compression in (None, "gzip")
        ]
    answers.append(asyncio.run(asynchronously(url, model, headers)))
    return [
        {"version": each.get_response().model_version, "same": bool((each.as_numpy("x") == VALUES).all())}
        for each in answers
    ]


async def asynchronously(url: str, model: str, headers: dict[str, str]) -> Any:
    """The same with the asynchronous client."""
    async with triton_aio.InferenceServerClient(url) as client:
        return await client.infer(model, given(), headers=headers)


def given() -> list[triton.InferInput]:
    """The inputs."""
    tensor = triton.InferInput("x", list(VALUES.shape), "FP32")
    tensor.set_data_from_numpy(VALUES)
    return [tensor]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(sys.argv[1]))))
