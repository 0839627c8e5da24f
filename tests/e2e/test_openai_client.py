"""The official `openai` package, unchanged, against the public edge."""

from __future__ import annotations

import json
import ssl
import time
import urllib.request

import openai
import pytest
from openai import OpenAI

from tests.support.mesh import Mesh

ASK = [{"role": "user", "content": "What is a weir?"}]


@pytest.mark.parametrize("model", ["weir-fast", "weir-quality"])
def test_a_chat_reads_as_language(acme: OpenAI, model: str) -> None:
    done = acme.chat.completions.create(model=model, messages=ASK, temperature=0, max_tokens=60)
    text = done.choices[0].message.content
    assert text
    assert len(text.split()) >= 5
    assert done.choices[0].finish_reason in ("stop", "length")
    assert done.model == f"{model}@1"
    assert done.usage is not None
    assert done.usage.prompt_tokens > 3
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


def test_a_stream_equals_the_whole(acme: OpenAI) -> None:
    whole = acme.chat.completions.create(model="weir-fast", messages=ASK, temperature=0, max_tokens=40)
    stream = acme.chat.completions.create(
        model="weir-fast",
        messages=ASK,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 5
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert finishes == [whole.choices[0].finish_reason]
    assert chunks[-1].usage == whole.usage


def test_every_response_says_what_it_is(acme: OpenAI) -> None:
    raw = acme.chat.completions.with_raw_response.create(model="weir-fast", messages=ASK, max_tokens=4)
    headers = raw.headers
    assert headers["x-request-id"] in raw.parse().id
    assert headers["x-weir-model-version"] == "weir-fast@1"
    assert headers["x-weir-simulated"] == "false"
    assert int(headers["x-ratelimit-limit-requests"]) >= int(headers["x-ratelimit-remaining-requests"]) >= 0
    assert int(headers["x-ratelimit-limit-tokens"]) >= int(headers["x-ratelimit-remaining-tokens"]) >= 0


def test_choices_differ_and_are_reproducible(acme: OpenAI) -> None:
    def run() -> list[str | None]:
        done = acme.chat.completions.create(
            model="weir-fast", messages=ASK, n=3, seed=11, temperature=1.0, max_tokens=24
        )
        return [choice.message.content for choice in done.choices]

    first = run()
    assert len(set(first)) > 1
    assert run() == first


def test_stop_ends_before_the_string(acme: OpenAI) -> None:
    plain = acme.chat.completions.create(model="weir-fast", messages=ASK, temperature=0, max_tokens=40)
    text = plain.choices[0].message.content or ""
    word = text.split()[3]
    stopped = acme.chat.completions.create(model="weir-fast", messages=ASK, temperature=0, max_tokens=40, stop=[word])
    assert stopped.choices[0].message.content == text[: text.index(word)]
    assert stopped.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "caps", [{"max_tokens": 3, "max_completion_tokens": 900}, {"max_tokens": 900, "max_completion_tokens": 3}]
)
def test_the_smaller_cap_binds(acme: OpenAI, caps: dict[str, int]) -> None:
    done = acme.chat.completions.create(
        model="weir-fast", messages=ASK, temperature=0, extra_body={"ignore_eos": True}, **caps
    )
    assert done.usage is not None
    assert done.usage.completion_tokens == 3
    assert done.choices[0].finish_reason == "length"


def test_logprobs(acme: OpenAI) -> None:
    done = acme.chat.completions.create(model="weir-fast", messages=ASK, temperature=0, max_tokens=6, logprobs=True)
    logprobs = done.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content).startswith(done.choices[0].message.content or "?")
    assert all(entry.logprob <= 0 for entry in logprobs.content)
    # What an answer could have said instead is not filtered, so it is not shown where answers are.
    with pytest.raises(openai.BadRequestError, match="top_logprobs"):
        acme.chat.completions.create(model="weir-fast", messages=ASK, max_tokens=6, logprobs=True, top_logprobs=2)


def test_completions(acme: OpenAI) -> None:
    done = acme.completions.create(model="weir-fast", prompt="The river", max_tokens=8, temperature=0)
    stream = acme.completions.create(model="weir-fast", prompt="The river", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == done.choices[0].text


def test_models_are_listed(acme: OpenAI) -> None:
    listed = {model.id for model in acme.models.list()}
    assert {"weir-fast", "weir-quality"} <= listed
    assert not any("@" in name for name in listed)
    assert acme.models.retrieve("weir-fast").id == "weir-fast"
    for name in ("nothing", "weir-fast@1"):
        with pytest.raises(openai.NotFoundError):
            acme.models.retrieve(name)


def test_a_pinned_version_is_served_to_whom_it_is_granted(mesh: Mesh, acme: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        acme.chat.completions.create(model="weir-quality@1", messages=ASK, max_tokens=2)
    mesh.weir("models", "grant", "tenant:acme", "--model", "weir-quality@1")
    try:
        deadline = time.monotonic() + 20
        while "weir-quality@1" not in {model.id for model in acme.models.list()}:
            assert time.monotonic() < deadline
        done = acme.chat.completions.create(model="weir-quality@1", messages=ASK, max_tokens=2)
        assert done.model == "weir-quality@1"
    finally:
        mesh.weir("models", "revoke", "tenant:acme", "--everything")


def test_embeddings(acme: OpenAI) -> None:
    done = acme.embeddings.create(model="weir-quality", input=["a river", "a river", "an invoice"])
    a, b, c = (entry.embedding for entry in done.data)
    assert a == pytest.approx(b, abs=1e-6)
    assert sum(x * x for x in a) == pytest.approx(1.0, abs=1e-3)
    assert a != pytest.approx(c, abs=1e-3)


def test_over_tls(mesh: Mesh) -> None:
    context = ssl.create_default_context(cafile=mesh.env["WEIR_CA"])
    request = urllib.request.Request(
        f"{mesh.env['WEIR_EDGE_TLS_URL']}/v1/models", headers={"authorization": f"Bearer {mesh.env['WEIR_KEY_ACME']}"}
    )
    with urllib.request.urlopen(request, context=context, timeout=30) as response:
        assert json.load(response)["object"] == "list"


def test_e9_a_list_of_prompts(acme: OpenAI) -> None:
    """As many choices, in their order, each the same as if it had been asked for alone."""
    prompts = ["The river", "A weir", "Water"]
    ask = {"model": "weir-fast", "max_tokens": 6, "temperature": 0}
    alone = [acme.completions.create(prompt=prompt, **ask).choices[0].text for prompt in prompts]
    together = acme.completions.create(prompt=prompts, **ask)
    assert [(choice.index, choice.text) for choice in together.choices] == list(enumerate(alone))
    streamed = ["", "", ""]
    for chunk in acme.completions.create(prompt=prompts, stream=True, **ask):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == alone


def test_e9_offsets_find_the_tokens(acme: OpenAI) -> None:
    done = acme.completions.create(model="weir-fast", prompt="The river", max_tokens=8, temperature=0, logprobs=0)
    choice = done.choices[0]
    assert choice.logprobs is not None
    found = zip(choice.logprobs.tokens or (), choice.logprobs.text_offset or (), strict=True)
    assert all(choice.text[at:].startswith(token) for token, at in found)


def test_e9_token_ids_are_embedded_as_their_text(acme: OpenAI) -> None:
    """The official client sends lists of token ids where its caller has tokenised."""
    done = acme.embeddings.create(model="weir-quality", input=[[5, 6, 7], [5, 6, 7], [300, 301]], user="u1")
    a, b, c = (entry.embedding for entry in done.data)
    assert a == pytest.approx(b, abs=1e-6)
    assert a != pytest.approx(c, abs=1e-3)
    assert done.usage.prompt_tokens == 8


def test_e9_no_probability_at_all_is_the_most_likely(acme: OpenAI) -> None:
    ask = {"model": "weir-fast", "messages": ASK, "max_tokens": 12}
    greedy = acme.chat.completions.create(temperature=0, **ask)
    nucleus = acme.chat.completions.create(temperature=1, top_p=0, **ask)
    assert nucleus.choices[0].message.content == greedy.choices[0].message.content


def test_e9_bodies_and_events_name_their_characters(mesh: Mesh) -> None:
    """A body may say charset=utf-8; events do, because some clients read text as Latin-1 otherwise."""
    body = {"model": "weir-fast", "stream": True, "max_tokens": 2, "messages": [{"role": "user", "content": "Où ?"}]}
    asked = urllib.request.Request(
        f"{mesh.env['WEIR_EDGE_URL']}/v1/chat/completions",
        data=json.dumps(body, ensure_ascii=False).encode(),
        headers={
            "authorization": f"Bearer {mesh.env['WEIR_KEY_ACME']}",
            "content-type": "application/json; charset=utf-8",
        },
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.read().endswith(b"data: [DONE]\n\n")


def test_e9_biases_are_refused_by_name(acme: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        acme.chat.completions.create(
            model="weir-fast", messages=ASK, max_tokens=2, logit_bias={str(token): 1 for token in range(2000)}
        )
