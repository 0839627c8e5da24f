"""A model for the predictor's executors that does what its inputs say: `prepare` stands in for the formats."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
from weir.registry.v1 import registry_pb2

from services.predictor.executors.loading import Prepared
from services.predictor.files import Files
from services.predictor.port import LoadError, ModelError, Signature, Tensor, Tensors

REFUSE, RAISE, DIE, WAIT, GROW = -1.0, -2.0, -3.0, -4.0, -5.0
"""First values of a row, and what the model does then; WAIT: it tells the folder's pipe
`waiting` and waits for `pipe`."""


class Obedient:
    """y is 2x, and z is x + 1. Every run leaves a line with its first values in the folder's `runs`."""

    native = True

    def __init__(self, folder: Path, max_rows: int) -> None:
        shape = (-1, -1) if max_rows else (-1,)
        self.signature = Signature(
            (Tensor("x", "FP32", shape),), (Tensor("y", "FP32", shape), Tensor("z", "FP32", shape)), max_rows
        )
        self._folder = folder
        self.kept: list[np.ndarray] = []

    def run(self, inputs: Tensors, outputs: frozenset[str] | None = None) -> dict[str, np.ndarray]:
        x = inputs["x"]
        with (self._folder / "runs").open("a") as runs:
            runs.write(" ".join(f"{value:g}" for value in x.reshape(len(x), -1)[:, 0]) + "\n")
        asked = set(x.reshape(-1).tolist())
        if WAIT in asked:
            (self._folder / "waiting").write_bytes(b"")  # until there is a reader
            with (self._folder / "pipe").open("rb") as pipe:  # until there is a writer
                pipe.read()
        if REFUSE in asked:
            raise ModelError("it is negative", "x")
        if RAISE in asked:
            raise RuntimeError(f"a library tells what it was given: {x}")
        if DIE in asked:
            os.kill(os.getpid(), signal.SIGKILL)
        if GROW in asked:
            self.kept.append(np.ones(1 << 24))
        found = {"y": x * 2, "z": x + 1}
        return {name: array for name, array in found.items() if outputs is None or name in outputs}

    def close(self) -> None:
        (self._folder / "closed").touch()


def prepare(files: Files, spec: registry_pb2.PredictionSpec) -> Prepared:
    """An `Obedient`; the folder's file `cost` has ℓ(1) in seconds, `broken` makes it fail, `deadly` end its process,
    `heavy` take 64 MiB."""
    folder = files.folder
    if (folder / "broken").exists():
        raise LoadError("it does not give what it gave")
    if (folder / "deadly").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    seconds = float((folder / "cost").read_text())
    model = Obedient(folder, spec.max_rows)
    model.native = not (folder / "foreign").exists()
    if (folder / "heavy").exists():
        model.kept.append(np.ones(1 << 23))
    return Prepared(model, [(1, seconds), (8, seconds * 1.5)])
