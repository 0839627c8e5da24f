"""What a file of a model is, by its bytes."""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import lightgbm as lgb
import numpy as np
import onnx
import pytest
import skops.io
import xgboost as xgb
from onnx import TensorProto, helper
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from libs.model_files import format_of, is_pickle

ROOT = Path(__file__).resolve().parents[3]
X = np.random.default_rng(5).normal(size=(60, 3))
Y = (X.sum(1) > 0).astype(int)


class Touch:
    """Leaves a mark where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def estimator() -> LogisticRegression:
    return LogisticRegression().fit(X, Y)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol_whatever_they_are_called(
    tmp_path: Path, estimator: LogisticRegression, protocol: int
) -> None:
    file, mark = tmp_path / "model.ubj", tmp_path / "mark"
    for thing in (estimator, Touch(mark), X, {"weights": X.tolist()}, [1, 2, 3], "text" * 5000):
        file.write_bytes(pickle.dumps(thing, protocol))
        assert is_pickle(file), type(thing)
    joblib.dump(estimator, file, protocol=protocol)
    assert is_pickle(file)
    assert not mark.exists()


@pytest.mark.parametrize("protocol", [0, 1, 2, 5])
@pytest.mark.parametrize("how", ["zlib", "gzip", "bz2", "lzma", "xz"])
def test_joblib_compressed(tmp_path: Path, estimator: LogisticRegression, how: str, protocol: int) -> None:
    file = tmp_path / "model.onnx"
    joblib.dump(estimator, file, compress=(how, 3), protocol=protocol)
    assert is_pickle(file)


@pytest.mark.parametrize("flags", [0x40, 0x48, 0x60])
@pytest.mark.parametrize("protocol", [2, 5])
def test_joblib_compressed_with_lz4(tmp_path: Path, estimator: LogisticRegression, flags: int, protocol: int) -> None:
    """Frames as lz4 writes them (nothing here has it): the literals before the first repetition."""
    data = pickle.dumps(estimator, protocol)[:300]
    header = b"\x04\x22\x4d\x18" + bytes([flags, 0x40]) + (b"\0" * 8 if flags & 8 else b"") + b"\0"
    body = bytes([0xF0, 255, 300 - 15 - 255]) + data
    for block in (struct.pack("<I", len(body)) + body, struct.pack("<I", 300 | 0x80000000) + data):
        (tmp_path / "model.skops").write_bytes(header + block)
        assert is_pickle(tmp_path / "model.skops")


def test_archives_of_torch_hold_pickles(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.onnx", "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02N.")
    assert is_pickle(tmp_path / "model.onnx")


@pytest.mark.parametrize("name", ["model.pkl", "model.PICKLE", "model.joblib", "model.pt", "model.pth", "model.dill"])
def test_what_is_called_a_pickle_is_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"anything")
    assert is_pickle(tmp_path / name)


def made(folder: Path, estimator: LogisticRegression) -> dict[str, str]:
    """A file of each format, and which it is."""
    booster = xgb.train({"objective": "binary:logistic"}, xgb.DMatrix(X, Y), 3)
    for name in ("a.ubj", "a.json"):
        booster.save_model(folder / name)
    lgb.train({"objective": "binary", "verbosity": -1}, lgb.Dataset(X, Y), 3).save_model(folder / "a.txt")
    skops.io.dump(estimator, folder / "a.skops")
    skops.io.dump(StandardScaler().fit(X), folder / "b.skops", compression=zipfile.ZIP_DEFLATED)
    graph = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3])],
    )
    onnx.save(helper.make_model(graph), folder / "a.onnx")
    return {
        "a.ubj": "xgboost",
        "a.json": "xgboost",
        "a.txt": "lightgbm",
        "a.skops": "sklearn",
        "b.skops": "sklearn",
        "a.onnx": "onnx",
    }


def test_formats_are_found_out_whatever_the_file_is_called(tmp_path: Path, estimator: LogisticRegression) -> None:
    for name, format_ in made(tmp_path, estimator).items():
        other = (tmp_path / name).rename(tmp_path / "model.bin")
        assert (format_of(other), is_pickle(other)) == (format_, False), name


@pytest.mark.parametrize("folder", sorted((ROOT / "models/demo").iterdir()), ids=lambda path: path.name)
def test_no_file_of_a_demo_model_is_taken_for_another_thing(folder: Path) -> None:
    known = {".ubj": "xgboost", ".onnx": "onnx", ".pt2": "torch", ".txt": "lightgbm", ".skops": "sklearn"}
    for file in folder.iterdir() if folder.is_dir() else [folder]:
        assert (format_of(file), is_pickle(file)) == (known.get(file.suffix, ""), False), file


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b".", b"N", b"N. B.: rows are patients.\n", b"cat\ndog\nbird\n", b"city\nname\nRome\n", b"tree\nleaf\n"),
        *(b"(defun f (x) x)\n" * 9000, b"x^2 + y\n", b"I1,2\n3,4\n", b"PK\x03\x04 and no archive", b"{}", b'{"a": 1}'),
        *(b"\x1f\x8b\x08 and nothing", b"BZh9 and nothing", b"\xfd7zXZ\x00", b"\x04\x22\x4d\x18", b"ZF0x1"),
        *(b"\x08\x08", b"\x08\x08\x3a\x05ab", b"\x3a\x00", b"x,y,z\n" * 200_000, bytes(range(256)) * 5000),
    ],
)
def test_what_is_none_of_them(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert (format_of(tmp_path / "file"), is_pickle(tmp_path / "file")) == ("", False)
