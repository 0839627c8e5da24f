"""The engine's core where there is nothing but torch and numpy, and the reference that such a machine compares with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import support_checkpoints as support
import torch
from safetensors.torch import load_file

from loadtest.gpucheck import units
from loadtest.gpucheck.reference import Reference, read_tensors, write_tensors

ROOT = Path(__file__).parents[3]
ALONE = """
import sys
from importlib.abc import MetaPathFinder

ABSENT = {"grpc", "google", "weir", "msgspec", "prometheus_client", "llguidance", "tokenizers", "transformers"}


class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
from pathlib import Path

from libs.clock import SystemClock
from services.worker.engines.port import SamplingParams, SequenceRequest, Structure
from services.worker.engines.torch_engine import TorchCore, TorchSettings

core = TorchCore(TorchSettings(models={"weir-fast@1": Path("models/demo/fast")}, device="cpu"), clock=SystemClock())
core.load()
plain = SamplingParams(max_tokens=5, temperature=0.7, top_p=0.9, logprobs=2, ignore_eos=True)
bound = SamplingParams(max_tokens=5, structure=Structure("regex", "[ab]+"))
core.add([SequenceRequest(handle=1, model="weir-fast@1", prompt=[7, 8, 9], params=plain)])
core.add([SequenceRequest(handle=2, model="weir-fast@1", prompt=[7, 8, 9], params=bound)])
tokens, errors = 0, {}
while core.has_work():
    step = core.step()
    tokens += sum(map(len, step.tokens))
    errors |= step.errors
core.close()
assert not ABSENT & {name.partition(".")[0] for name in sys.modules}
print(tokens, errors)
"""


def test_the_core_runs_with_torch_and_numpy_alone():
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "5 {2: 'this model cannot keep to a structure'}"


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 4, "tie_word_embeddings": True}, {"head_dim": 12}])
def test_the_plain_reference_is_transformers(tmp_path, changes):
    model = support.save_checkpoint(tmp_path, **changes)
    tokens = [5, 9, 60, 3, 3, 41, 88, 12]
    with torch.inference_mode():
        wanted = model(torch.tensor([tokens])).logits[0].log_softmax(dim=-1)
    assert torch.allclose(Reference(tmp_path).logprobs(tokens), wanted, atol=1e-4)


def test_the_plain_reference_refuses_what_it_does_not_know(tmp_path):
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    support.save_checkpoint(tmp_path, rope_parameters=rope)
    with pytest.raises(ValueError, match="plain Llamas only"):
        Reference(tmp_path)


def test_tensors_are_written_as_safetensors(tmp_path):
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    write_tensors(tmp_path / "file", tensors)
    for read in (load_file(tmp_path / "file"), read_tensors(tmp_path / "file")):
        assert read.keys() == tensors.keys()
        assert all(torch.equal(read[name], tensors[name]) and read[name].dtype == tensors[name].dtype for name in read)


def test_what_a_test_lacks_is_told_from_what_fails(tmp_path):
    report = tmp_path / "units.xml"
    report.write_text(
        "<testsuites><testsuite><testcase classname='a' name='good'/>"
        "<testcase classname='a' name='left out'><skipped/></testcase>"
        "<testcase classname='a' name='poor'><error message='x'>No module named 'msgspec'</error></testcase>"
        "<testcase classname='a' name='bad'><failure message='assert 1 == 2'>no</failure></testcase>"
        "</testsuite></testsuites>"
    )
    ran = units.read(report)
    assert (ran.passed, ran.failed, dict(ran.lacking)) == (1, ["a::bad"], {"msgspec": 1})


def test_the_check_of_a_machine_runs_on_a_cpu(tmp_path):
    """As `bin/gpu-check --device cpu` does, with little of everything."""
    done = subprocess.run(
        [ROOT / "bin/gpu-check", "--device", "cpu", "--quick", "--tests", "test_pacing"],
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert (done.returncode, result["failures"], result["ok"]) == (0, [], True), done.stdout + done.stderr
    assert result["units"]["passed"] > 5
    assert len(result["oracle"]) == 8
    assert result["bench"]["bfloat16"]["decode_step_ms"] > 0
