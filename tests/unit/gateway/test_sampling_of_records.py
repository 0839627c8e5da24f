"""From a checkpoint's generation_config.json to what each engine is told, where a request says nothing and where it
does."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import Options, describe
from libs.catalog import Catalog
from libs.clock import ManualClock
from services.gateway.messages import _sampling
from services.gateway.policy.parameters import bind_parameters
from services.gateway.policy.spec import Parameters
from services.worker.convert import sampling_of
from services.worker.engines.tensorrt_llm import sampling_arguments as of_tensorrt
from services.worker.engines.vllm_requests import sampling_arguments as of_vllm
from tests.support.checkpoint import write_checkpoint

NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
OFF = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
SAID = {"temperature": 0.75, "top_p": 0.5, "top_k": 20, "min_p": 0.25, "repetition_penalty": 1.5}


def recorded(folder: Path, generation: dict[str, Any]) -> pb.ModelVersion:
    write_checkpoint(folder)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return describe(folder, Options(name="m", version="1", tier="fast", pool="p"))


def told(version: pb.ModelVersion, given: Parameters) -> dict[str, float]:
    """What the torch engine is told of a request of ten tokens; the libraries are told the same."""
    limits = Catalog(zone="", texts=None, clock=ManualClock()).limits("t", "m", version)  # type: ignore[arg-type]
    bound = bind_parameters(given, limits, prompt_tokens=10)
    params = sampling_of(_sampling(bound, SimpleNamespace(tokens=(), index=0, scores=None)))  # type: ignore[arg-type]
    found = {name: getattr(params, name) for name in NAMES}
    vllm, tensorrt = of_vllm(params, room=1000, stops=frozenset()), of_tensorrt(params, 1000)
    assert {name: vllm[name] for name in NAMES} == found
    assert {name: tensorrt.get(name, OFF.get(name)) for name in NAMES} == found
    return found


def test_who_says_nothing_gets_what_the_checkpoint_says(tmp_path: Path) -> None:
    version = recorded(tmp_path, {**SAID, "do_sample": True, "max_new_tokens": 50})
    assert told(version, Parameters()) == {**SAID, "max_tokens": 50}


@pytest.mark.parametrize(
    "own",
    [
        {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.125, "repetition_penalty": 1.25, "max_tokens": 7},
        {"temperature": 1.0, "max_tokens": 9, **OFF},
    ],
)
def test_what_a_request_says_wins(tmp_path: Path, own: dict[str, Any]) -> None:
    assert told(recorded(tmp_path, SAID), Parameters(**own)) == own


def test_what_a_checkpoint_leaves_open_is_off(tmp_path: Path) -> None:
    assert told(recorded(tmp_path, {}), Parameters()) == {"temperature": 1.0, "max_tokens": 118, **OFF}


def test_a_checkpoints_outputs_are_no_longer_than_the_context_that_it_is_given(tmp_path: Path) -> None:
    """It was said of the checkpoint's own context, and is no reason to refuse a shorter one."""
    assert recorded(tmp_path, {"max_new_tokens": 4096}).sampling_defaults.max_tokens == 128
