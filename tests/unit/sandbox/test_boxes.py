"""Arrays into a sandbox and out of it, and a Python step between them."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from weir.registry.v1 import registry_pb2 as pb

from libs.sandbox import fences, frames
from libs.shipped import ROOT
from services.predictor import formats, golden
from services.predictor.files import Files
from services.predictor.formats import python
from services.predictor.formats.step import LoadError, Options, Wiring
from services.predictor.port import ModelError, Tensor

pytestmark = pytest.mark.skipif(not fences.available().complete, reason=str(fences.available()))
X = Tensor("x", "FP32", (-1, 2))


def read_of(frame: bytes) -> frames.Read:
    stream = io.BytesIO(frame)

    def read(count: int) -> bytes:
        part = stream.read(count)
        if len(part) < count:
            raise EOFError
        return part

    return read


DTYPES = st.sampled_from(["?", "u1", "<i2", "<i8", "<f2", "<f4", "<f8"])


@given(
    arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)),
    st.lists(st.binary(max_size=9), max_size=5),
)
def test_what_is_packed_is_unpacked(numbers: np.ndarray, texts: list[bytes]) -> None:
    words = np.empty(len(texts), object)
    words[:] = texts
    header, got = frames.unpack(read_of(frames.pack({"a": 1}, {"numbers": numbers, "words": words})))
    assert header == {"a": 1}
    assert got["numbers"].dtype == numbers.dtype
    assert np.array_equal(got["numbers"], numbers, equal_nan=numbers.dtype.kind == "f")
    assert got["words"].tolist() == texts


@given(st.binary(max_size=200), st.integers(0, 100))
def test_any_bytes_are_a_frame_or_refused(noise: bytes, at: int) -> None:
    frame = frames.pack({}, {"x": np.arange(4.0), "y": np.array([b"one", b""], object)})
    broken = frame[:at] + noise + frame[at + len(noise) :]
    with contextlib.suppress(frames.FrameError, EOFError):
        frames.unpack(read_of(broken), most=1 << 16)


def step(source: str, folder: Path, last: tuple[Tensor, ...] = (X,), **options: str) -> python.Source:
    file = folder / "step.py"
    file.write_text(source)
    return python.load(file.read_bytes(), Wiring((X,), last, Options(options)))


def test_a_step_gives_what_it_declares_or_is_refused(tmp_path: Path) -> None:
    doubled = step("def run(inputs):\n    return {'x': inputs['x'] * 2}", tmp_path)
    given_rows = np.array([[1, 2], [3, 4]], np.float32)
    try:
        assert doubled.run({"x": given_rows}, frozenset({"x"}))["x"].tolist() == [[2, 4], [6, 8]]
    finally:
        doubled.close()
    for returned, why in (
        ("{}", "does not give 'x'"),
        ("{'x': inputs['x'][:1]}", r"float32 \[1, 2\]; it is declared FP32 \[2, 2\]"),
        ("{'x': inputs['x'].astype('f8')}", "float64"),
        ("{'x': ['a']}", "raises"),
    ):
        wrong = step(f"def run(inputs):\n    return {returned}", tmp_path)
        try:
            with pytest.raises(ModelError, match=why):
                wrong.run({"x": given_rows}, frozenset({"x"}))
        finally:
            wrong.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"inputs": "y"}, "no tensor 'y'"),
        ({"outputs": ""}, "must say what a step gives"),
        ({"outputs": "f:float:-1"}, "is not as in"),
        ({"outputs": "f:FP32:-1", "seconds": "61"}, "from 1 to 60"),
    ],
)
def test_options_that_are_wrong_are_named(tmp_path: Path, options: dict[str, str], why: str) -> None:
    with pytest.raises(LoadError, match=why):
        step("def run(inputs): return {}", tmp_path, last=(), **options)


def test_the_demo_model_with_python_steps_passes_its_golden_rows() -> None:
    folder = ROOT / "models" / "demo" / "topics"
    said = json.loads((folder / "manifest.json").read_text())["prediction"]
    model = formats.load(Files(folder), json_format.ParseDict(said, pb.PredictionSpec()))
    try:
        golden.check(model, (folder / "golden.json").read_bytes())
        told = model.run({"text": np.array([b"Queues need a bound.", b"\xff\xfe"], object)})
        assert told["topic"][0] == b"systems"
        assert told["scores"].sum(axis=1) == pytest.approx([1, 1], abs=1e-5)
    finally:
        model.close()
