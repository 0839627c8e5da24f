"""Graphs that do what their inputs or their makers say, as folders that `weir models push` takes. ONNX Runtime runs
them as it runs any other.

`echo` answers 2·number + 1, exactly, after so many turns of a loop as the row says: whoever gets somebody else's answer
sees it. `spoilt` takes and gives what `cancer-gbdt` does, and fails or is slow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

POOL = "predict"
FEATURES = 30
"""Of `cancer-gbdt`."""
_WIDTH = 128
_OPSET, _IR = 17, 8

Node = Any


def echo(folder: Path, *, ballast: int = 0, smaller: Sequence[str] = (), max_rows: int = 4) -> Path:
    """A version that takes `x`, FP32 [rows, 2], of numbers and turns, and gives `y`, FP32 [rows]. A batch takes as many
    turns as the most of its rows.

    :param ballast: bytes that it carries and nobody reads.
    """
    nodes = [
        helper.make_node("Gather", ["x", "first"], ["number"], axis=1),
        helper.make_node("Gather", ["x", "second"], ["turns"], axis=1),
        helper.make_node("ReduceMax", ["turns"], ["most"], keepdims=0),
        *_spinning("most"),
        helper.make_node("Mul", ["number", "two"], ["twice"]),
        helper.make_node("Add", ["twice", "one"], ["answer"]),
        helper.make_node("Add", ["answer", "nothing"], ["y"]),
    ]
    constants = {"two": np.float32(2), "one": np.float32(1), "first": np.array(0), "second": np.array(1)}
    # Its golden row takes no turns: it would be thought to cost nothing, and run on the event loop.
    prediction = {"lane": "thread", "max_rows": max_rows, "smaller": list(smaller)}
    _write(folder, nodes, constants, ("x", 2), "y", prediction)
    if ballast:
        (folder / "ballast.bin").write_bytes(bytes(ballast))
    return folder


def spoilt(folder: Path, *, fails: bool = False, turns: int = 0, smaller: Sequence[str] = ()) -> Path:
    """A version with the inputs and outputs of `cancer-gbdt`.

    :param fails: it refuses every row but those of zeros, which are its golden ones.
    :param turns: of the loop that each of its executions takes.
    """
    nodes = [
        helper.make_node("ReduceSum", ["features", "axis"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["real"]),
        helper.make_node("Cast", ["real"], ["place"], to=TensorProto.INT64),
        # Behind the end of the table, for a version that fails.
        helper.make_node("Gather", ["table", "place"], ["looked_up"]),
        *_spinning("turns"),
        helper.make_node("Add", ["looked_up", "nothing"], ["probability"]),
    ]
    table = np.full(1 if fails else 2, 0.5, np.float32)
    constants = {"axis": np.array([1]), "zero": np.float32(0), "table": table, "turns": np.float32(turns)}
    prediction = {"max_rows": 256, "smaller": list(smaller)}
    return _write(folder, nodes, constants, ("features", FEATURES), "probability", prediction)


def _spinning(turns: str) -> list[Node]:
    """`nothing`, 0.0, after so many turns (FP32) of a product with a matrix, which nobody can leave out."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("MatMul", ["before", "weights"], ["product"]),
            helper.make_node("Tanh", ["product"], ["after"]),
        ],
        "turn",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, [1, _WIDTH]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, [1, _WIDTH]),
        ],
    )
    return [
        helper.make_node("Cast", [turns], ["trips"], to=TensorProto.INT64),
        helper.make_node("Loop", ["trips", "", "start"], ["spun"], body=body),
        helper.make_node("ReduceMax", ["spun"], ["some"], keepdims=0),
        helper.make_node("Mul", ["some", "naught"], ["nothing"]),
    ]


def _write(
    folder: Path,
    nodes: list[Node],
    constants: dict[str, Any],
    takes: tuple[str, int],
    gives: str,
    prediction: dict[str, Any],
) -> Path:
    folder.mkdir(parents=True)
    (name, width), rng = takes, np.random.default_rng(_WIDTH)
    weights = rng.normal(size=(_WIDTH, _WIDTH)).astype(np.float32)
    constants |= {"weights": weights, "start": np.ones((1, _WIDTH), np.float32), "naught": np.float32(0)}
    graph = helper.make_graph(
        nodes,
        gives,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])],
        [helper.make_tensor_value_info(gives, TensorProto.FLOAT, ["rows"])],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    onnx.checker.check_model(made, full_check=True)
    onnx.save(made, folder / "model.onnx")
    declared = {
        "steps": [{"format": "onnx", "path": "model.onnx"}],
        "inputs": [{"name": name, "datatype": "FP32", "shape": ["-1", str(width)]}],
        "outputs": [{"name": gives, "datatype": "FP32", "shape": ["-1"]}],
        "profile": "classical",
        **prediction,
    }
    manifest = {"architecture": "onnx", "pool": POOL, "prediction": declared}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (folder / "golden.json").write_text(json.dumps({name: [[0.0] * width]}), encoding="utf-8")
    return folder
