"""ONNX in a predictor gives what ONNX Runtime gives, to the bit."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper
from weir.registry.v1 import registry_pb2 as pb

from libs.versions.manifest import ManifestFile
from services.predictor import formats
from services.predictor.files import Files
from services.predictor.formats import LoadError
from services.predictor.formats.external import files_of
from services.predictor.formats.onnx import open_session
from services.predictor.port import Model, ModelError
from tests.unit.predictor.specs import load, spec, step


def _save(
    path: Path, nodes: list[onnx.NodeProto], inputs: list, outputs: list, initializers: list | None = None
) -> None:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers or [])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)


def _nothing(name: str) -> bytes:
    raise AssertionError(name)


def _value(name: str, kind: int, shape: list[int | str] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("onnx")
    weights = np.random.default_rng(3).normal(size=(3, 2)).astype(np.float32)
    _save(
        made / "linear.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["score"]), helper.make_node("ArgMax", ["score"], ["label"], axis=1)],
        [_value("x", TensorProto.FLOAT, ["rows", 3])],
        [_value("score", TensorProto.FLOAT, ["rows", 2]), _value("label", TensorProto.INT64, ["rows", 1])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    table = onnx.numpy_helper.from_array(np.arange(5, dtype=np.float32), "table")
    _save(
        made / "gather.onnx",
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        [_value("i", TensorProto.INT64, ["rows"])],
        [_value("y", TensorProto.FLOAT, ["rows"])],
        [table],
    )
    _save(
        made / "texts.onnx",
        [helper.make_node("StringConcat", ["t", "end"], ["u"])],
        [_value("t", TensorProto.STRING, ["rows"])],
        [_value("u", TensorProto.STRING, ["rows"])],
        [helper.make_tensor("end", TensorProto.STRING, [1], [b"!"])],
    )
    _save(
        made / "halves.onnx",
        [helper.make_node("Identity", ["h"], ["same"])],
        [_value("h", TensorProto.FLOAT16, ["rows"])],
        [_value("same", TensorProto.FLOAT16, ["rows"])],
    )
    _save(
        made / "bfloat.onnx",
        [helper.make_node("Identity", ["h"], ["same"])],
        [_value("h", TensorProto.BFLOAT16, ["rows"])],
        [_value("same", TensorProto.BFLOAT16, ["rows"])],
    )
    (made / "broken.onnx").write_bytes(b"no graph")
    return made


LINEAR = {"inputs": "x FP32 -1 3", "outputs": "score FP32 -1 2, label INT64 -1 1"}


@given(x=hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.just(3)), elements=st.floats(width=32)))
def test_equal_to_onnx_runtime_to_the_bit(folder: Path, x: np.ndarray) -> None:
    model = _model(folder)
    assert model.native
    native = ort.InferenceSession(folder / "linear.onnx", providers=["CPUExecutionProvider"])
    score, label = native.run(["score", "label"], {"x": x})
    x.flags.writeable = False
    got = model.run({"x": x})
    assert got["score"].tobytes() == score.tobytes()
    assert got["label"].tobytes() == label.tobytes()


@cache
def _model(folder: Path) -> Model:
    return load(folder, spec(step("onnx", "linear.onnx"), **LINEAR))


def test_an_execution_has_one_thread_which_rests_while_nothing_runs(folder: Path) -> None:
    """Others run at the same time, and threads that spin for work would take what these need."""
    for threads in (1, 2):
        content = (folder / "linear.onnx").read_bytes()
        chosen = open_session(content, threads, ["CPUExecutionProvider"], _nothing).get_session_options()
        assert (chosen.intra_op_num_threads, chosen.inter_op_num_threads) == (threads, 1)
        for pool in ("intra_op", "inter_op"):
            assert chosen.get_session_config_entry(f"session.{pool}.allow_spinning") == "0"
    given = step("onnx", "linear.onnx", threads="2")
    assert _threads(load(folder, spec(step("onnx", "linear.onnx"), **LINEAR))) == 1
    assert _threads(load(folder, spec(given, **LINEAR))) == 2


def _threads(model: Any) -> int:
    return int(model._steps[0]._session.get_session_options().intra_op_num_threads)


def test_only_the_outputs_asked_for(folder: Path) -> None:
    assert set(_model(folder).run({"x": np.zeros((2, 3), np.float32)}, frozenset(["label"]))) == {"label"}


def test_texts(folder: Path) -> None:
    model = load(folder, spec(step("onnx", "texts.onnx"), inputs="t BYTES -1", outputs="u BYTES -1"))
    texts = np.array([b"weir", "wörd".encode()], object)
    assert model.run({"t": texts})["u"].tolist() == [b"weir!", "wörd!".encode()]
    with pytest.raises(ModelError) as refused:
        model.run({"t": np.array([b"\xff"], object)})
    assert (str(refused.value), refused.value.tensor) == ("input 't': an element is not UTF-8", "t")


def test_halves(folder: Path) -> None:
    model = load(folder, spec(step("onnx", "halves.onnx"), inputs="h FP16 -1", outputs="same FP16 -1"))
    halves = np.array([0.5, np.nan, np.inf], np.float16)
    assert model.run({"h": halves})["same"].tobytes() == halves.tobytes()


def test_what_the_graph_refuses_is_the_callers_fault_and_no_value_is_repeated(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = load(folder, spec(step("onnx", "gather.onnx"), inputs="i INT64 -1", outputs="y FP32 -1"))
    with pytest.raises(ModelError) as refused:
        model.run({"i": np.array([0, 31337])})
    assert str(refused.value) == "the graph refuses the inputs at a Gather node"
    assert "31337" not in "".join(capfd.readouterr())
    assert model.run({"i": np.array([4])})["y"].tolist() == [4.0]


def _outside(folder: Path, location: str) -> pb.PredictionSpec:
    """A graph whose weights lie in another file."""
    outside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value=location)
    outside.external_data.add(key="offset", value="4")
    node, x = helper.make_node("Add", ["x", "w"], ["y"]), _value("x", TensorProto.FLOAT, ["rows", 2])
    _save(folder / "outside.onnx", [node], [x], [_value("y", TensorProto.FLOAT, ["rows", 2])], [outside])
    return spec(step("onnx", "outside.onnx"), inputs="x FP32 -1 2", outputs="y FP32 -1 2")


def test_a_graph_reads_no_file_outside_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(12))
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "own").write_bytes(np.array([1, 2, 3], np.float32).tobytes())
    model = load(folder, _outside(folder, "own"))
    assert model.run({"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[3.0, 4.0]]
    for location in (f"{tmp_path}/secret", "link", "../secret", "absent", ""):
        with pytest.raises(LoadError, match="there is no artifact"):
            load(folder, _outside(folder, location))


def test_weights_in_another_file_are_those_that_were_listed(tmp_path: Path) -> None:
    listed = {}
    declared = _outside(tmp_path, "own")
    (tmp_path / "own").write_bytes(bytes(12))
    for name in ("outside.onnx", "own"):
        content = (tmp_path / name).read_bytes()
        listed[name] = ManifestFile(name, len(content), hashlib.sha256(content).hexdigest())
    formats.load(Files(tmp_path, listed), declared).close()
    (tmp_path / "own").write_bytes(b"\1" * 12)
    with pytest.raises(LoadError, match="own: its sha256 is not the manifest's"):
        formats.load(Files(tmp_path, listed), declared)
    del listed["own"]
    with pytest.raises(LoadError, match="there is no artifact 'own'"):
        formats.load(Files(tmp_path, listed), declared)


def _hidden() -> Iterator[onnx.ModelProto]:
    """Tensors in another file where no initializer of the graph is."""
    outside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="own")
    constant = helper.make_node("Constant", [], ["y"], value=outside)
    inner = helper.make_graph([], "inner", [], [], [outside])
    sparse = onnx.SparseTensorProto(values=outside)
    for nodes in (
        [constant],
        [helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)],
        [helper.make_node("If", ["x"], ["y"], then_branch=helper.make_graph([constant], "inner", [], []))],
        [helper.make_node("Constant", [], ["y"], sparse_value=sparse)],
    ):
        yield helper.make_model(helper.make_graph(nodes, "g", [], []))
    yield helper.make_model(helper.make_graph([], "g", [], [], sparse_initializer=[sparse]))
    function = helper.make_function("d", "f", [], ["y"], [constant], [helper.make_opsetid("", 20)])
    yield helper.make_model(helper.make_graph([], "g", [], []), functions=[function])


@pytest.mark.parametrize("model", list(_hidden()))
def test_weights_in_another_file_are_found_wherever_the_model_has_them(model: onnx.ModelProto) -> None:
    with pytest.raises(LoadError, match="tensor 'w' lies in another file"):
        files_of(model.SerializeToString())


@given(st.binary(max_size=200))
def test_what_is_no_message_has_no_other_files(content: bytes) -> None:
    with suppress(LoadError):
        files_of(content)


def test_a_session_keeps_no_copy_of_its_model(folder: Path) -> None:
    content = (folder / "linear.onnx").read_bytes()
    held = sys.getrefcount(content)
    session = open_session(content, 1, ["CPUExecutionProvider"], _nothing)
    assert session.get_inputs()
    assert sys.getrefcount(content) == held


@pytest.mark.parametrize(
    ("path", "inputs", "outputs", "said"),
    [
        ("broken.onnx", "x FP32 -1 3", "score FP32 -1 2", "no graph that ONNX Runtime runs"),
        ("linear.onnx", "z FP32 -1 3", "score FP32 -1 2", "the graph takes an input 'x', which is not there"),
        ("linear.onnx", "x FP64 -1 3", "score FP32 -1 2", "input 'x' is declared FP64; the model has FP32"),
        ("linear.onnx", "x FP32 -1 4", "score FP32 -1 2", "input 'x' is declared [-1, 4]; the model has [-1, 3]"),
        ("linear.onnx", "x FP32 -1 3", "score FP32 -1", "output 'score' is declared [-1]; the model has [-1, 2]"),
        ("linear.onnx", "x FP32 -1 3", "p FP32 -1", "the graph has no output 'p'; it gives 'score', 'label'"),
        ("bfloat.onnx", "h BF16 -1", "same BF16 -1", "input 'h' is tensor(bfloat16)"),
    ],
)
def test_what_does_not_fit_its_declaration_is_not_loaded(
    folder: Path, path: str, inputs: str, outputs: str, said: str
) -> None:
    with pytest.raises(LoadError) as refused:
        load(folder, spec(step("onnx", path), inputs=inputs, outputs=outputs))
    assert said in str(refused.value)
