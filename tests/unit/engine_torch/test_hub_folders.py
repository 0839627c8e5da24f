"""A made-up checkpoint of each architecture, in its repository's layout: described, read and run, without a mesh."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import support_checkpoints as support

from libs.artifacts import Options, describe
from libs.texts import ChatMessage, TextModel
from services.worker.engines.port import FinishReason
from tests.support.hub_folders import ANSWER, ARCHITECTURES, ASKED, CONTEXT, snapshot


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_is_described_read_and_run_to_the_end_of_its_turn(tmp_path: Path, architecture: str) -> None:
    folder = snapshot(tmp_path / "hub", architecture)
    made = describe(folder, Options(name="made-up", version="1", tier="fast", pool="p"))
    names = [each.path for each in made.artifacts]
    assert (made.architecture, made.context_length) == (architecture, CONTEXT)
    assert not any(name.startswith(("original/", "onnx/", "consolidated", "runs/")) for name in names)
    taken = tmp_path / "taken"
    for name in names:  # what a worker has of it
        (taken / name).parent.mkdir(parents=True, exist_ok=True)
        (taken / name).write_bytes((folder / name).read_bytes())
    text = TextModel({name: (taken / name).read_bytes() for name in names if not name.endswith(".safetensors")})
    prompt = text.encode_chat([ChatMessage("user", ASKED)])
    support.write_manifest(taken, "made-up@1")
    core = support.make_core({"made-up@1": taken})
    asked = support.request(1, prompt, model="made-up@1")
    found = support.run(core, [asked, replace(asked, handle=2, params=replace(asked.params, max_tokens=2))])
    assert text.decode(found.tokens[1]) == ANSWER
    assert found.finish == {1: FinishReason.STOP, 2: FinishReason.LENGTH}
    assert text.decode(found.tokens[2]) == ANSWER[:2]
