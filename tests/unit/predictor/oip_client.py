"""tritonclient's own serialisation, in a process of its own: its generated messages have the names of ours.

Run as a script it answers pickled questions on its pipes.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np


class Triton:
    """The other process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def request(self, name: str, datatype: str, array: np.ndarray) -> bytes:
        """A ModelInferRequest with one input."""
        return self._ask("request", name, datatype, array)

    def read(self, response: bytes, name: str) -> np.ndarray:
        """An output of a ModelInferResponse."""
        return self._ask("read", response, name)

    def _ask(self, *question: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        pickle.dump(question, stdin)
        stdin.flush()
        return pickle.load(stdout)  # noqa: S301 — written by the child

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=30)


def _answer() -> None:
    from tritonclient.grpc import InferInput, InferResult, service_pb2
    from tritonclient.grpc._utils import _get_inference_request

    while True:
        try:
            kind, *arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 — written by the test
        except EOFError:
            return
        if kind == "request":
            name, datatype, array = arguments
            sent = InferInput(name, list(array.shape), datatype).set_data_from_numpy(array)
            settings = {"request_id": "", "outputs": None, "sequence_id": 0, "sequence_start": False}
            settings |= {"sequence_end": False, "priority": 0, "timeout": None, "parameters": None}
            answer = _get_inference_request("m", [sent], "", **settings).SerializeToString()
        else:
            response, name = arguments
            answer = InferResult(service_pb2.ModelInferResponse.FromString(response)).as_numpy(name)
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _answer()
