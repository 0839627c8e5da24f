"""The mesh with one worker on real vLLM. Needs vLLM's environment (`make vllm-env`, or VLLM_ENV=FOLDER)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from tests.e2e.conftest import client_for
from tests.support.mesh import ROOT, Mesh

PYTHON = ROOT / (os.environ.get("VLLM_ENV") or "build/vllm-env") / "bin" / "python"
ASK = [{"role": "user", "content": "What is a weir?"}]

# vLLM's three processes start one after the other, beside a whole mesh.
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON.exists(), reason="no vLLM here (build/vllm-env, VLLM_ENV): make vllm-env"),
]


@pytest.fixture(scope="module")
def vllm_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    state: Path = tmp_path_factory.mktemp("vllm-mesh")
    with Mesh(state, profile="vllm", settings=(f"worker-a.process.python={PYTHON}",), seconds=480) as running:
        yield running


@pytest.fixture(scope="module")
def client(vllm_mesh: Mesh) -> Iterator[OpenAI]:
    with client_for(vllm_mesh, vllm_mesh.env["WEIR_KEY_ACME"]) as made:
        yield made


def test_a_completion_streams_from_vllm_through_envoy(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="weir-fast",
        messages=ASK,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert len(text.split()) >= 5
    assert chunks[-1].usage is not None
    whole = client.chat.completions.create(model="weir-fast", messages=ASK, temperature=0, max_tokens=40)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_prompt_of_a_conversation_is_found_cached_by_its_tenant_alone(client: OpenAI, vllm_mesh: Mesh) -> None:
    long = [{"role": "user", "content": "Tell me about rivers and bees and small boats. " * 8}]
    ask = {"model": "weir-fast", "messages": long, "temperature": 0, "max_tokens": 4}
    first, again = (client.chat.completions.create(**ask).usage for _ in range(2))
    with OpenAI(
        base_url=f"{vllm_mesh.env['WEIR_EDGE_URL']}/v1", api_key=vllm_mesh.env["WEIR_KEY_TINY"], max_retries=0
    ) as tiny:
        other = tiny.chat.completions.create(**ask).usage
    cached = [each.prompt_tokens_details.cached_tokens for each in (first, again, other)]
    assert cached[0] == cached[2] == 0
    assert cached[1] >= 32


def test_the_other_model_is_served_by_the_other_worker(client: OpenAI, vllm_mesh: Mesh) -> None:
    done = client.chat.completions.create(model="weir-quality", messages=ASK, temperature=0, max_tokens=8)
    assert done.model == "weir-quality@1"
    fault = vllm_mesh.process("worker-a")
    assert fault["state"] == "ready"


def test_a_client_that_leaves_frees_its_sequence(client: OpenAI, vllm_mesh: Mesh) -> None:
    with client.chat.completions.create(model="weir-fast", messages=ASK, max_tokens=400, stream=True) as stream:
        next(iter(stream))
    # The engine goes on for the next one, and stays the same process.
    pid = vllm_mesh.process("worker-a")["pid"]
    done = client.chat.completions.create(model="weir-fast", messages=ASK, temperature=0, max_tokens=8)
    assert done.choices[0].message.content
    assert vllm_mesh.process("worker-a")["pid"] == pid


def test_embeddings_of_a_vllm_model_are_refused_as_not_offered(client: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.embeddings.create(model="weir-fast", input="a weir")
    assert refused.value.status_code == 501
