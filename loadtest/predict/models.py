"""Models to measure with: folders as `weir models push` takes them, and the same models in the bare library."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from libs.shipped import ROOT

TREES = ROOT / "models" / "demo" / "cancer-gbdt"
FEATURES = 30
Run = Callable[[np.ndarray], object]


@dataclass(frozen=True, slots=True)
class Network:
    """Square layers over a sequence of `tokens` made of each row: a row costs as much in a batch as alone, nearly, and
    few bytes travel for much work."""

    name: str
    format: str
    layers: int
    width: int = 256
    tokens: int = 128
    max_rows: int = 16

    def write(self, folder: Path) -> None:
        """The folder of the version."""
        folder.mkdir(parents=True)
        path = "model.onnx" if self.format == "onnx" else "model.pt2"
        (self._onnx if self.format == "onnx" else self._torch)(folder / path)
        tensor: dict[str, Any] = {"datatype": "FP32", "shape": ["-1", str(self.width)]}
        prediction = {
            "steps": [{"format": self.format, "path": path}],
            "inputs": [{"name": "x", **tensor}],
            "outputs": [{"name": "y", **tensor}],
            "max_rows": self.max_rows,
            "profile": "deep",
            "no_golden_reason": "weights drawn by chance, to measure with",
        }
        manifest = {"name": self.name, "version": "1", "architecture": self.format, "pool": "predict"}
        (folder / "manifest.json").write_text(json.dumps({**manifest, "prediction": prediction}))

    def bare(self, folder: Path) -> Run:
        """The library alone, on one thread."""
        if self.format == "onnx":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
            return lambda rows: session.run(None, {"x": rows})
        import torch

        torch.set_num_threads(1)
        module = torch.export.load(folder / "model.pt2").module()

        def run(rows: np.ndarray) -> object:
            with torch.inference_mode():
                return module(torch.from_numpy(rows))

        return run

    def rows(self, count: int) -> np.ndarray:
        """Inputs."""
        return np.random.default_rng(count).normal(size=(count, self.width)).astype(np.float32)

    def _weights(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """What makes a sequence of a row, (tokens, width), and the layers."""
        rng = np.random.default_rng(self.width)
        shape = (self.width, self.width)
        layers = [(rng.normal(size=shape) * (2 / self.width) ** 0.5).astype(np.float32) for _ in range(self.layers)]
        return rng.normal(size=(self.tokens, self.width)).astype(np.float32), layers

    def _onnx(self, path: Path) -> None:
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        places, layers = self._weights()
        constants = [numpy_helper.from_array(places, "places"), numpy_helper.from_array(np.array([1]), "one")]
        nodes = [
            helper.make_node("Unsqueeze", ["x", "one"], ["row"]),
            helper.make_node("Mul", ["row", "places"], ["h"]),
        ]
        last = "h"
        for number, weights in enumerate(layers):
            constants.append(numpy_helper.from_array(weights, f"w{number}"))
            nodes.append(helper.make_node("MatMul", [last, f"w{number}"], [f"m{number}"]))
            nodes.append(helper.make_node("Relu", [f"m{number}"], [last := f"h{number}"]))
        nodes.append(helper.make_node("ReduceMean", [last], ["y"], axes=[1], keepdims=0))
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", self.width]) for name in ("x", "y")]
        graph = helper.make_graph(nodes, self.name, ends[:1], ends[1:], constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(made, path)

    def _torch(self, path: Path) -> None:
        import torch

        class Stack(torch.nn.Module):
            def __init__(self, places: np.ndarray, layers: list[np.ndarray]) -> None:
                super().__init__()
                self.places = torch.nn.Parameter(torch.from_numpy(places))
                self.layers = torch.nn.ParameterList(torch.from_numpy(each) for each in layers)

            def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
                h = x[:, None, :] * self.places
                for layer in self.layers:
                    h = torch.relu(h @ layer)
                return {"y": h.mean(dim=1)}

        rows = torch.export.Dim("rows", min=1, max=self.max_rows)
        with torch.no_grad():
            example = (torch.zeros(4, self.width),)
            torch.export.save(torch.export.export(Stack(*self._weights()), example, dynamic_shapes=({0: rows},)), path)


def trees() -> Run:
    """`cancer-gbdt` in XGBoost alone."""
    import xgboost

    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(TREES / "model.ubj")
    return lambda rows: booster.inplace_predict(rows, validate_features=False)


def seconds_of(run: Run, rows: np.ndarray, *, seconds: float) -> list[float]:
    """Times of executions one after the other, for as long; the first few do not count."""
    for _ in range(3):
        run(rows)
    took: list[float] = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(took) < 5:
        begun = time.perf_counter()
        run(rows)
        took.append(time.perf_counter() - begun)
    return took
