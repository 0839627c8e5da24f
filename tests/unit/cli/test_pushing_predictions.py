"""`weir models push` of a folder that holds a model's file and golden rows."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import xgboost as xgb

from libs.artifacts import FolderError, LocalBlobStore, fetch
from libs.artifacts import folder as folders
from libs.registry import MemoryStore, keys, snapshot_of
from services.cli.commands import models_derive
from tests.support.operator import Operator

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(80, 2)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    matrix = xgb.DMatrix(X, X.sum(1), feature_names=["width", "height"])
    xgb.train({"max_depth": 2, "nthread": 1}, matrix, 3).save_model(made / "weights.ubj")
    (made / "golden.csv").write_text("height,width\n0.5,1\n,2\n")
    return made


async def test_a_models_file_and_some_rows_are_enough(
    weir: Operator, store: MemoryStore, folder: Path, tmp_path: Path
) -> None:
    words = ["models", "push", folder, "--name", "box", "--version", "1", "--pool", "predict", "--unsigned"]
    words += ["--blobs", (tmp_path / "blobs").as_uri(), "--reason", "try it"]
    tried = await weir(*words, "--dry-run")
    assert tried.code == 0, tried.err
    pushed = await weir(*words)
    assert pushed.code == 0, pushed.err
    for line in (
        f"weights.ubj (xgboost), read by xgboost {xgb.__version__}",
        "features FP32 [-1, 2]: width, height",
        "prediction FP32 [-1]",
        f"2 rows of golden.csv, answers of xgboost {xgb.__version__}",
        "box@1 is registered: 3 files",
    ):
        assert line in pushed.out
    assert sorted(os.listdir(folder)) == ["golden.csv", "weights.ubj"]
    version = snapshot_of(*await store.get_prefix(keys.ROOT)).model_versions["box@1"]
    assert (version.prediction.golden, version.architecture) == ("golden.json", "xgboost")
    assert [each.name for each in version.prediction.inputs[0].columns] == ["width", "height"]
    await fetch(version, LocalBlobStore(tmp_path / "blobs"), tmp_path / "fetched")
    (case,) = json.loads((tmp_path / "fetched" / "golden.json").read_text())["cases"]
    given = np.array(case["inputs"][0]["data"], np.float32).reshape(2, 2)
    assert np.array_equal(given, np.array([[1, 0.5], [2, np.nan]], np.float32), equal_nan=True)
    again = await weir(*words)
    assert "none new" in again.out, again.err
    refused = await weir(*words, "--format", "lightgbm")
    assert (refused.code, refused.err.count("weights.ubj is said to be lightgbm, but it is xgboost")) == (1, 1)


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


async def test_a_pickle_is_refused_and_never_read(weir: Operator, tmp_path: Path) -> None:
    folder, mark = tmp_path / "model", tmp_path / "mark"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(pickle.dumps(Touch(mark), protocol=0))
    (tmp_path / "blobs").mkdir()
    refused = await weir("models", "push", folder, "--name", "m", "--blobs", (tmp_path / "blobs").as_uri())
    assert refused.code == 1
    assert "'weights.bin' is a pickle, and a pickle runs code where it is read: save it as" in refused.err
    assert not mark.exists()


@pytest.mark.parametrize("name", ["json.py", "services/__init__.py", "libs/__init__.py"])
def test_nothing_of_the_folder_where_one_stands_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """It may be the stranger's."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("open('mark', 'w')")
    monkeypatch.chdir(tmp_path)
    spec = {"steps": [{"format": "torch", "path": "m.pt2"}]}
    with pytest.raises(SystemExit):
        models_derive._ask({"folder": ".", "prediction": spec, "max_rows": None, "golden": "", "to": "golden.json"})
    assert "the manifest must say those of others" in capsys.readouterr().err
    with pytest.raises(FolderError, match="chat_template"):
        folders._render("{% if %}")
    assert not (tmp_path / "mark").exists()
