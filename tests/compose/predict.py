"""Asks a model for a prediction with NVIDIA's client and prints what came, as JSON.

predict.py ADDRESS CA KEY MODEL INPUTS DEGRADABLE SECONDS: INPUTS are those of a golden case, JSON; asks again for so
long where nobody answers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, triton_to_np_dtype


def tensors(inputs: Iterable[Mapping[str, Any]]) -> list[triton.InferInput]:
    """What the client sends for the inputs of a golden case."""
    found = []
    for each in inputs:
        array = np.array(each["data"], triton_to_np_dtype(each["datatype"])).reshape(each["shape"])
        found.append(triton.InferInput(each["name"], each["shape"], each["datatype"]))
        found[-1].set_data_from_numpy(array)
    return found


def main(address: str, ca: str, key: str, model: str, inputs: str, degradable: str, seconds: str) -> None:
    """Asks until there is an answer."""
    client = triton.InferenceServerClient(address, ssl=True, root_certificates=ca)
    asked, headers = tensors(json.loads(inputs)), {"authorization": f"Bearer {key}"}
    parameters = {"degradable": degradable == "yes"}
    deadline = time.monotonic() + float(seconds)
    while True:
        try:
            answer = client.infer(model, asked, headers=headers, parameters=parameters, client_timeout=5.0)
            break
        except InferenceServerException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    said = answer.get_response()
    told = {name: each.string_param for name, each in said.parameters.items() if each.string_param}
    outputs = {each.name: answer.as_numpy(each.name) for each in said.outputs}
    print(json.dumps({"parameters": told, "outputs": {name: _plain(each) for name, each in outputs.items()}}))  # noqa: T201


def _plain(array: np.ndarray) -> list[Any]:
    flat = array.ravel().tolist()
    return [each.decode() if isinstance(each, bytes) else each for each in flat]


if __name__ == "__main__":
    main(*sys.argv[1:])
