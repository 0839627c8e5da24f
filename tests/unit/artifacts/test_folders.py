"""What is read out of a model folder."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import FolderError, Options, describe, role_of, unread
from services.cli.commands.models_push import push

OPTIONS = Options(name="m", version="2", tier="fast", pool="p", architecture="A", context_length=8)


def folder(path: Path, **files: Any) -> Path:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name.replace("__", ".")).write_text(text)
    return path


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("model.safetensors", "weights"),
        ("shards/model-00001-of-00002.safetensors", "weights"),
        ("model.safetensors.index.json", "weights"),
        ("pytorch_model.bin", "weights"),
        ("model.gguf", "weights"),
        ("tokenizer.json", "tokenizer"),
        ("tokenizer_config.json", "tokenizer"),
        ("chat_template.jinja", "chat_template"),
        ("config.json", "config"),
        ("adapter_model.safetensors", "adapter"),
        ("adapter_config.json", "adapter"),
        ("README.md", ""),
    ],
)
def test_roles(path: str, role: str) -> None:
    assert role_of(path) == role


def test_what_nobody_says_is_as_in_the_newest_of_its_name(tmp_path: Path) -> None:
    older = pb.ModelVersion(name="m", version="1", tier="fast", pool="a")
    newer = pb.ModelVersion(name="m", version="0", tier="quality", pool="b")
    newer.sampling_defaults.max_tokens = 64
    newer.created_at.seconds = 5
    other = pb.ModelVersion(name="n", version="9", tier="fast", pool="c")
    other.created_at.seconds = 9
    made = describe(
        folder(tmp_path, config__json={"architectures": ["B"], "max_position_embeddings": 77}),
        Options(name="m", version="2"),
        [older, newer, other],
    )
    assert (made.tier, made.pool, made.sampling_defaults.max_tokens) == ("quality", "b", 64)
    assert (made.architecture, made.context_length) == ("B", 77)


def test_an_adapter_is_as_its_base(tmp_path: Path) -> None:
    base = pb.ModelVersion(name="n", version="1", tier="quality", pool="b", architecture="B", context_length=77)
    made = describe(folder(tmp_path, adapter_config__json="{}"), Options(name="m", version="1", base="n@1"), [base])
    assert (made.tier, made.pool, made.architecture, made.context_length) == ("quality", "b", "B", 77)
    assert made.provenance.base == "n@1"


def test_a_version_says_by_what_tokens_it_goes(tmp_path: Path) -> None:
    def made(name: str, *known: pb.ModelVersion, base: str = "", **files: Any) -> str:
        (tmp_path / name).mkdir()
        options = replace(OPTIONS, base=base)
        return describe(folder(tmp_path / name, weights__bin="w", **files), options, known).tokenizer_sha256

    digest = hashlib.sha256(b"the tokenizer").hexdigest()
    assert made("one", tokenizer__json="the tokenizer", vocab__json="{}") == digest
    assert made("two", tokenizer__model="the tokenizer") == digest
    listed = {"tokenizer_sha256": "a" * 64}
    assert (
        made("three", tokenizer__json="the tokenizer", manifest__json=listed) == digest
    )  # of the file, whatever is said
    assert made("four", manifest__json=listed) == "a" * 64
    parts = made("five", vocab__json="{}", merges__txt="a b")
    assert len(parts) == 64
    assert made("six", vocab__json="{}", merges__txt="a b", tokenizer_config__json="{}") == parts
    assert made("seven", vocab__json="{}", merges__txt="a c") != parts
    base = pb.ModelVersion(name="n", version="1", tokenizer_sha256=digest)
    assert made("eight", base, base="n@1") == digest
    assert made("nine") == ""


def test_options_count_before_the_manifest_and_the_manifest_before_the_files(tmp_path: Path) -> None:
    listed = {
        "name": "listed",
        "version": 7,
        "context_length": 5,
        "sampling_defaults": {"temperature": 0.1},
        "offline_metrics": {"loss": 1, "bleu": 0.5},
        "provenance": {"builder": "nightly", "built_at": "2026-01-02T03:04:05Z"},
        "eos_token_ids": [3, 4],
    }
    path = folder(
        tmp_path,
        manifest__json=listed,
        config__json={"max_position_embeddings": 77, "architectures": ["C"], "eos_token_id": 9},
        generation_config__json={"temperature": 0.9, "top_p": 0.5},
    )
    made = describe(path, Options(version="8", tier="fast", pool="p", metrics={"loss": 0.25}, builder="me"))
    assert (made.name, made.version, made.context_length, made.architecture) == ("listed", "8", 5, "C")
    assert made.sampling_defaults.temperature == pytest.approx(0.1)
    assert (made.sampling_defaults.top_p, list(made.eos_token_ids)) == (0.5, [3, 4])
    assert dict(made.offline_metrics) == {"loss": 0.25, "bleu": 0.5}
    assert (made.provenance.builder, made.provenance.built_at.seconds) == ("me", 1767323045)


def test_a_model_that_does_not_sample_is_greedy(tmp_path: Path) -> None:
    path = folder(tmp_path, generation_config__json={"do_sample": False, "temperature": 0.7, "eos_token_id": 2})
    assert describe(path, OPTIONS).sampling_defaults.temperature == 0.0


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, "holds no files"),
        ({"a": "x", "manifest__json": {"files": [{"path": 5}]}}, "malformed list"),
        ({"a": "x", "manifest__json": {"files": [{"path": "b", "sha256": "", "bytes": 1}]}}, "b is missing"),
        ({"a": "x", "manifest__json": {"provenance": {"built_at": "yesterday"}}}, "RFC 3339"),
        ({"a": "x", "manifest__json": {"provenance": []}}, None),
        ({"a": "x", "manifest__json": {"provenance": [1]}}, "provenance must be an object"),
        ({"a": "x", "manifest__json": {"offline_metrics": {"loss": "low"}}}, "loss must be a number"),
        ({"a": "x", "manifest__json": {"context_length": "many"}}, "context_length must be a whole number"),
        ({"a": "x", "manifest__json": {"sampling_defaults": {"top_p": "high"}}}, "top_p must be a number"),
    ],
)
def test_folders_that_make_no_sense(tmp_path: Path, files: dict[str, Any], complaint: str | None) -> None:
    path = folder(tmp_path, **files)
    if complaint is None:
        describe(path, OPTIONS)
        return
    with pytest.raises(FolderError, match=complaint):
        describe(path, replace(OPTIONS, context_length=0))


def test_sampling_defaults_are_kept_as_a_checkpoint_has_them(tmp_path: Path) -> None:
    """As Qwen2.5's; a caller who says nothing gets them."""
    said = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.5}
    made = describe(folder(tmp_path, generation_config__json=said), OPTIONS).sampling_defaults
    assert (made.top_k, made.repetition_penalty) == (20, 1.5)
    assert made.min_p == pytest.approx(0.1)
    said = {"do_sample": False, "repetition_penalty": 1.5, "top_k": 50}
    made = describe(folder(tmp_path, generation_config__json=said), OPTIONS).sampling_defaults
    assert (made.temperature, made.top_k, made.repetition_penalty) == (0.0, 0, 1.5)


GOOD, BAD = "{{ messages[0].content }}", "{{ raise_exception('no') }}"
NAMED = [{"name": "tool_use", "template": BAD}, {"name": "default", "template": GOOD}]
SAID = {"chat_template_sha256": "a" * 64}


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config__json": {"chat_template": GOOD}},
        {"tokenizer_config__json": {"chat_template": GOOD}, "manifest__json": SAID},
        {"tokenizer_config__json": {"chat_template": NAMED}},
        {"chat_template__jinja": "\ufeff" + GOOD, "tokenizer_config__json": {"chat_template": BAD}},
        {"chat_template__json": {"chat_template": GOOD}},
    ],
)
def test_the_template_that_is_rendered_is_the_one_that_is_tried_and_digested(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    """M2, M7, M20: as gateways choose it."""
    made = describe(folder(tmp_path, weights__bin="w", **files), OPTIONS)
    assert made.chat_template_sha256 == hashlib.sha256(GOOD.encode()).hexdigest()


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"tokenizer_config__json": {"chat_template": NAMED[:1]}}, "none is called default"),
        ({"tokenizer_config__json": {"chat_template": [{"name": [], "template": GOOD}]}}, "none is called default"),
        ({"tokenizer_config__json": {"chat_template": "\ud800"}}, "surrogate"),
        ({"chat_template__jinja": BAD, "tokenizer_config__json": {"chat_template": GOOD}}, "no"),
        ({"chat_template__json": {"chat_template": BAD}}, "no"),
        ({"chat_template__jinja": BAD, "manifest__json": SAID}, "no"),
        ({"chat_template__jinja": "{% for a in b %}" * 30 + "{% endfor %}" * 30}, "nested blocks"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_when_it_is_pushed(
    tmp_path: Path, files: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(FolderError, match=f"chat_template: .*{complaint}"):
        describe(folder(tmp_path, weights__bin="w", **files), OPTIONS)


def test_what_a_folder_does_not_say_is_asked_for_by_options_that_there_are(tmp_path: Path) -> None:
    """M16: the messages named two that push did not have."""
    path = folder(tmp_path, weights__bin="w")
    wanting = Options(name="m", version="2", tier="fast", pool="p")
    for field, given in (("architecture", {"context_length": 8}), ("context_length", {"architecture": "A"})):
        assert field in inspect.signature(push).parameters
        with pytest.raises(FolderError, match=f"say --{field.replace('_', '-')}$"):
            describe(path, replace(wanting, **given))
    assert describe(path, OPTIONS).architecture == "A"


CHECKPOINT = {
    "config__json": {"architectures": ["A"], "text_config": {"max_position_embeddings": 8}},
    "model.safetensors": "weights",
    "tokenizer__json": {},
}
OTHERS = ("original/a.pth", "onnx/model.onnx", "pytorch_model.bin", "consolidated.safetensors", "code/__init__.py")


def laid(path: Path, names: Iterable[str], content: str = "x") -> Path:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("" if name.endswith("__init__.py") else content)
    return path


def test_what_no_engine_reads_is_left_out(tmp_path: Path) -> None:
    path = laid(folder(tmp_path, **CHECKPOINT), OTHERS)
    made = describe(path, replace(OPTIONS, context_length=0))
    assert [each.path for each in made.artifacts] == ["config.json", "model.safetensors", "tokenizer.json"]
    assert set(unread(path)) == set(OTHERS)
    assert made.context_length == 8
    (path / "model.safetensors").unlink()  # then it is all there is
    assert "pytorch_model.bin" in [each.path for each in describe(path, OPTIONS).artifacts]


def test_a_snapshot_of_hugging_faces_cache_is_a_folder_and_other_links_are_not(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, (name, content) in enumerate(CHECKPOINT.items()):
        (blobs / str(number)).write_text(content if isinstance(content, str) else json.dumps(content))
        (snapshot / name.replace("__", ".")).symlink_to(f"../../blobs/{number}")
    made = describe(snapshot, OPTIONS)
    assert [each.path for each in made.artifacts] == ["config.json", "model.safetensors", "tokenizer.json"]
    (tmp_path / "secret").write_text("x")
    (snapshot / "more.json").symlink_to(tmp_path / "secret")
    with pytest.raises(FolderError, match=r"more\.json is a link"):
        describe(snapshot, OPTIONS)
    (snapshot / "more.json").unlink()
    (blobs / "link").symlink_to(tmp_path / "secret")
    (snapshot / "more.json").symlink_to("../../blobs/link")
    with pytest.raises(FolderError, match=r"more\.json is a link"):
        describe(snapshot, OPTIONS)
