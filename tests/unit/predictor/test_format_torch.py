"""Programs of torch.export in a predictor give what torch gives, and files that run code are refused."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from services.predictor import warmup
from services.predictor.formats import LoadError, pt2
from services.predictor.port import Model, ModelError
from tests.unit.predictor.specs import load, spec, step

IN = "x FP32 -1 4, k INT64 -1"
OUT = "logits FP32 -1 3, label INT64 -1"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 3))
        self.table = nn.Embedding(5, 3)

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x) + self.table(k)
        return {"logits": logits, "label": logits.argmax(-1)}


class Half(nn.Module):
    def forward(self, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return h * 2, h.to(torch.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("torch")
    rows = torch.export.Dim("rows", min=1, max=64)
    both = {"x": {0: rows}, "k": {0: rows}}
    example = (torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64))
    torch.export.save(torch.export.export(Net().eval(), example, dynamic_shapes=both), made / "net.pt2")
    one = (torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64))
    torch.export.save(torch.export.export(Net().eval(), one), made / "one.pt2")
    half = (torch.zeros(3, dtype=torch.bfloat16),)
    torch.export.save(torch.export.export(Half(), half, dynamic_shapes={"h": {0: rows}}), made / "half.pt2")
    return made


@pytest.fixture(scope="module")
def net(folder: Path) -> Model:
    return load(folder, spec(step("torch", "net.pt2"), inputs=IN, outputs=OUT))


@given(x=hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.just(4)), elements=st.floats(width=32)))
def test_equal_to_torch_to_the_bit(net: Model, x: np.ndarray) -> None:
    k = np.arange(len(x)) % 5
    with torch.inference_mode():
        expected = Net().eval()(torch.from_numpy(x.copy()), torch.from_numpy(k))
    x.flags.writeable = False
    got = net.run({"x": x, "k": k})
    assert set(got) == {"logits", "label"}
    for name, array in got.items():
        assert array.tobytes() == expected[name].numpy().tobytes()


def test_only_the_outputs_asked_for_and_not_in_the_servers_process(net: Model) -> None:
    assert set(net.run({"x": np.zeros((1, 4), np.float32), "k": np.zeros(1, np.int64)}, frozenset(["label"]))) == {
        "label"
    }
    assert not net.native


def test_bfloat16_and_outputs_by_their_order(folder: Path) -> None:
    model = load(folder, spec(step("torch", "half.pt2"), inputs="h BF16 -1", outputs="double BF16 -1, wide FP32 -1"))
    halves = torch.tensor([0.5, -3.0], dtype=torch.bfloat16)
    got = model.run({"h": halves.view(torch.uint16).numpy()})
    assert got["double"].dtype == np.uint16
    assert torch.from_numpy(got["double"]).view(torch.bfloat16).tolist() == [1.0, -6.0]
    assert got["wide"].tolist() == [0.5, -3.0]


def test_what_the_program_refuses_is_the_callers_fault_and_no_value_is_repeated(net: Model) -> None:
    with pytest.raises(ModelError) as refused:
        net.run({"x": np.zeros((1, 4), np.float32), "k": np.array([31337])})
    assert str(refused.value) == "the program refuses the inputs (IndexError)"
    with pytest.raises(ModelError, match=r"Expected input at .* to be <= 64, but got 65"):
        net.run({"x": np.zeros((65, 4), np.float32), "k": np.zeros(65, np.int64)})


@pytest.mark.parametrize(
    ("path", "inputs", "outputs", "said"),
    [
        ("net.pt2", "x FP32 -1 4", OUT, "the program takes an input 'k', which is not there"),
        ("net.pt2", "x FP64 -1 4, k INT64 -1", OUT, "input 'x' is declared FP64; the model has FP32"),
        ("net.pt2", "x FP32 -1 5, k INT64 -1", OUT, "input 'x' is declared [-1, 5]; the model has [-1, 4]"),
        ("one.pt2", IN, OUT, "input 'x' is declared [-1, 4]; the model has [1, 4]"),
        ("net.pt2", IN, "p FP32 -1", "the program has no output 'p'; it gives 'logits', 'label'"),
        ("half.pt2", "h BF16 -1", "double BF16 -1", "the program gives 2 outputs; 1 are declared"),
    ],
)
def test_what_does_not_fit_its_declaration_is_not_loaded(
    folder: Path, path: str, inputs: str, outputs: str, said: str
) -> None:
    with pytest.raises(LoadError) as refused:
        load(folder, spec(step("torch", path), inputs=inputs, outputs=outputs))
    assert said in str(refused.value)


def test_another_output_than_declared_is_found_by_warming_up(folder: Path) -> None:
    model = load(folder, spec(step("torch", "net.pt2"), inputs=IN, outputs="logits FP64 -1 3, label INT64 -1"))
    with pytest.raises(LoadError, match="output 'logits' is declared FP64"):
        warmup.samples(model)


class Boom:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def _changed(folder: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of a good program with other contents."""
    with zipfile.ZipFile(folder / "net.pt2") as archive:
        held = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    change(held)
    with zipfile.ZipFile(tmp_path / "evil.pt2", "w") as archive:
        for name, content in held.items():
            archive.writestr(f"net/{name}", content)
    return tmp_path


def _edit(held: dict[str, bytes], name: str, old: str, new: str) -> None:
    text = held[name].decode()
    assert old in text
    held[name] = text.replace(old, new).encode()


WEIGHTS = "data/weights/model_weights_config.json"


def _pickled_weight(held: dict[str, bytes], mark: Path) -> None:
    config = json.loads(held[WEIGHTS])
    for entry in config["config"].values():
        entry["use_pickle"] = True
        held[f"data/weights/{entry['path_name']}"] = pickle.dumps(Boom(mark))
    held[WEIGHTS] = json.dumps(config).encode()


def _opaque(held: dict[str, bytes], mark: Path) -> None:
    held["data/constants/opaque_obj_0"] = pickle.dumps(Boom(mark))


def _samples(held: dict[str, bytes], mark: Path) -> None:
    held["data/sample_inputs/model.pt"] = pickle.dumps(Boom(mark), protocol=2)


def _operator(held: dict[str, bytes], mark: Path) -> None:
    _edit(held, pt2.PROGRAM, "torch.ops.aten.relu.default", "torch.os.system")


def _size(held: dict[str, bytes], mark: Path) -> None:
    _edit(held, pt2.PROGRAM, "Symbol('s", f"__import__('pathlib').Path('{mark}').touch() or Symbol('s")


def _older(held: dict[str, bytes], mark: Path) -> None:
    held["serialized_state_dict.pt"] = pickle.dumps(Boom(mark))
    held["version"] = b"8.8"
    del held[pt2.PROGRAM]


def _compiled(held: dict[str, bytes], mark: Path) -> None:
    held["data/aotinductor/model/code.so"] = b"\x7fELF"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_pickled_weight, "is a pickle, and a pickle runs code"),
        (_opaque, "the archive holds 'data/constants/opaque_obj_0'"),
        (_samples, "UnpicklingError"),
        (_operator, "operator 'torch.os.system'"),
        (_size, "is no arithmetic of sizes"),
        (_older, "of its older format"),
        (_compiled, "the archive holds 'data/aotinductor/model/code.so'"),
    ],
)
def test_a_file_that_runs_code_is_refused_before_it_does(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, bytes], Path], None], said: str
) -> None:
    mark = tmp_path / "mark"
    evil = _changed(folder, tmp_path, lambda held: change(held, mark))
    with pytest.raises(LoadError) as refused:
        load(evil, spec(step("torch", "evil.pt2"), inputs=IN, outputs=OUT))
    assert said in str(refused.value)
    assert not mark.exists()


def test_the_same_file_unchanged_is_loaded(folder: Path, tmp_path: Path) -> None:
    good = _changed(folder, tmp_path, lambda held: None)
    load(good, spec(step("torch", "evil.pt2"), inputs=IN, outputs=OUT))


def test_guards_of_the_file_are_never_compiled(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = json.dumps(f"open({str(mark)!r}, 'w') is None")[1:-1]
    guard = "L['x'].size()[0] == L['k'].size()[0]"
    evil = _changed(folder, tmp_path, lambda held: _edit(held, pt2.PROGRAM, guard, code))
    model = load(evil, spec(step("torch", "evil.pt2"), inputs=IN, outputs=OUT))
    model.run({"x": np.zeros((1, 4), np.float32), "k": np.zeros(1, np.int64)})
    assert not mark.exists()


@pytest.mark.parametrize(
    ("expression", "fine"),
    [
        ("Symbol('s37', positive=True, integer=True)", True),
        ("2*s0 + 1", True),
        ("FloorDiv(s0, 2) >= Max(1, u3)", True),
        ("__import__('os')", False),
        ("s0.__class__", False),
        ("exec(chr(49))", False),
        ("Symbol('exec(1)')", False),
        ("[s0][0]", False),
        ("lambda: s0", False),
        ("Max('a b')", False),
    ],
)
def test_arithmetic_of_sizes_and_nothing_else(expression: str, fine: bool) -> None:
    assert pt2._is_size(expression) is fine
