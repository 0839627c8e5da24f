"""Models that people have: a folder of Hugging Face's cache of each architecture that the torch engine runs is pushed,
served, answers over the edge, and its turn ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from tests.support.hub_folders import ANSWER, ARCHITECTURES, ASKED, snapshot
from tests.support.mesh import Mesh, eventually

_MAKING = threading.Lock()
"""torch's random numbers are the process's."""


def name_of(architecture: str) -> str:
    return architecture.removesuffix("ForCausalLM").lower()


@pytest.fixture(scope="module")
def pushed(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What was said to each push, by architecture; an alias stands for each."""
    cache = tmp_path_factory.mktemp("hub")

    def push(architecture: str) -> str:
        with _MAKING:
            folder = snapshot(cache, architecture)
        name = name_of(architecture)
        told = mesh.weir(
            *("models", "push", str(folder), "--name", name, "--version", "1", "--tier", "fast", "--pool", "demo")
        )
        return told.stdout + told.stderr

    with ThreadPoolExecutor(2) as two:
        said = dict(zip(ARCHITECTURES, two.map(push, ARCHITECTURES), strict=True))
    aliases = cache / "aliases.yaml"
    aliases.write_text("---\n".join(map(alias_of, map(name_of, ARCHITECTURES))))
    mesh.weir("apply", "-f", str(aliases), "--reason", "an end-to-end test")
    return said


def alias_of(name: str) -> str:
    return (
        f"kind: Alias\nmetadata:\n  name: {name}\nspec:\n  targets:\n    - model_version: {name}@1\n      weight: 100\n"
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_of_hugging_face_answers_and_its_turn_ends(
    pushed: Mapping[str, str], acme: OpenAI, tmp_path: Path, architecture: str
) -> None:
    name = name_of(architecture)
    assert name in pushed[architecture]

    def answered() -> openai.types.chat.ChatCompletion | None:
        try:
            return acme.chat.completions.create(
                model=name, messages=[{"role": "user", "content": ASKED}], temperature=0, max_tokens=20
            )
        except (openai.NotFoundError, openai.APIStatusError) as error:  # not everywhere yet
            if error.status_code in (404, 429, 503):
                return None
            raise

    done = eventually(answered, what=f"an answer of {name}")
    assert done is not None
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == (ANSWER, "stop")
    assert done.model == f"{name}@1"
    stream = acme.chat.completions.create(
        model=name,
        messages=[{"role": "user", "content": ASKED}],
        temperature=0,
        max_tokens=2,
        stream=True,
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER[:2]
    assert chunks[-1].choices[0].finish_reason == "length"
