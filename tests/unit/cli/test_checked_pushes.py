"""`weir models check`, and what `weir models push` makes of a folder of Hugging Face's before it uploads anything."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import MemoryStore, Put, keys, snapshot_of
from libs.shipped import ROOT
from services.cli.__main__ import COMMANDS
from services.cli.app import parameters, resolve
from services.cli.output import terminal_line
from tests.support.checkpoint import LLAMA, REVISION, as_in_cache, write_checkpoint
from tests.support.operator import Operator

NOBODYS = LLAMA | {"architectures": ["NobodyForCausalLM"]}


async def worker(store: MemoryStore, engine: str, pool: str = "p") -> None:
    endpoint = pb.Endpoint(service="worker", instance="worker-0", address="127.0.0.1:1", pool=pool, engine=engine)
    await store.txn(puts=[Put(keys.key_of(endpoint), keys.encode(endpoint))])


async def versions(store: MemoryStore) -> dict[str, pb.ModelVersion]:
    return dict(snapshot_of(*await store.get_prefix(keys.ROOT)).model_versions)


def words(folder: Path, tmp_path: Path, *more: str) -> list[str]:
    called = ["--name", "m", "--version", "1", "--tier", "fast", "--pool", "p"]
    return ["models", "push", str(folder), *called, "--unsigned", "--blobs", (tmp_path / "blobs").as_uri(), *more]


async def test_check_says_for_each_engine_whether_it_can_and_why_not(weir: Operator, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "good")
    good = await weir("models", "check", folder)
    assert good.code == 0, good.err
    for engine in ("torch", "vllm", "tensorrt_llm", "simulated"):
        assert f"{engine}: can serve it" in good.out
    assert "keys and values" in good.out
    write_checkpoint(folder, NOBODYS)
    bad = await weir("models", "check", folder, "--engine", "torch")
    assert bad.code == 1
    assert 'architectures is ["NobodyForCausalLM"]' in bad.out
    assert "vllm" not in bad.out
    assert (await weir("models", "check", folder)).code == 0, "vLLM may know it"
    told = await weir("models", "check", folder, "--context", "64", "--json")
    assert json.loads(told.out)["can"] == ["vllm", "tensorrt_llm", "simulated"]
    nowhere = await weir("models", "check", tmp_path / "nowhere")
    assert (nowhere.code, nowhere.err) == (1, f"error: {tmp_path / 'nowhere'} is no folder\n")


async def test_what_no_engine_of_the_pool_can_serve_is_not_uploaded(
    weir: Operator, store: MemoryStore, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "model", NOBODYS)
    await worker(store, "torch")
    before = await store.get_prefix(keys.ROOT)
    refused = await weir(*words(folder, tmp_path))
    assert refused.code == 1
    for said in (
        "no engine of pool p (torch) can serve",
        'is ["NobodyForCausalLM"]',
        "nothing was uploaded",
        "--unchecked",
    ):
        assert said in refused.err
    assert not (tmp_path / "blobs").exists()
    assert await store.get_prefix(keys.ROOT) == before
    pushed = await weir(*words(folder, tmp_path, "--unchecked"))
    assert pushed.code == 0, pushed.err
    assert "though no engine can serve it: torch: " in pushed.out
    assert "NobodyForCausalLM" in (await versions(store))["m@1"].provenance.unchecked
    assert "NobodyForCausalLM" in (await weir("describe", "models", "m@1")).out


@pytest.mark.parametrize(("engine", "code"), [("torch", 1), ("vllm", 0), ("simulated", 0), ("", 0)])
async def test_the_pools_engine_decides(
    weir: Operator, store: MemoryStore, tmp_path: Path, engine: str, code: int
) -> None:
    folder = write_checkpoint(tmp_path / "model", NOBODYS)
    await worker(store, "torch", "another")
    if engine:
        await store.txn(
            puts=[
                Put(keys.key_of(each), keys.encode(each))
                for each in [pb.Endpoint(service="worker", instance="w", address="x", pool="p", engine=engine)]
            ]
        )
    pushed = await weir(*words(folder, tmp_path))
    assert pushed.code == code, pushed.err
    assert not code or "torch: " in pushed.err
    assert not (await versions(store)).get("m@1", pb.ModelVersion()).provenance.unchecked


async def test_a_checked_version_does_not_say_otherwise(weir: Operator, store: MemoryStore, tmp_path: Path) -> None:
    await worker(store, "torch")
    pushed = await weir(*words(write_checkpoint(tmp_path / "model"), tmp_path, "--unchecked"))
    assert pushed.code == 0, pushed.err
    assert (await versions(store))["m@1"].provenance == pb.Provenance()


async def test_the_context_that_it_is_to_have_counts(weir: Operator, store: MemoryStore, tmp_path: Path) -> None:
    await worker(store, "torch")
    refused = await weir(*words(write_checkpoint(tmp_path / "model"), tmp_path, "--context-length", "4096"))
    assert (refused.code, "a context of 4096 tokens is longer than the model's" in refused.err) == (1, True)


async def test_pickles_alone_are_refused_by_name(weir: Operator, store: MemoryStore, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused = await weir(*words(folder, tmp_path))
    assert (refused.code, "pytorch_model.bin: weights are a pickle" in refused.err) == (1, True)
    assert not (tmp_path / "blobs").exists()


async def test_a_snapshot_in_the_cache_says_most_of_it_itself(
    weir: Operator, store: MemoryStore, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "model")
    for name, size in (("original/consolidated.00.pth", 2000), ("pytorch_model.bin", 512), ("onnx/model.onnx", 30)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x" * size)
    snapshot = as_in_cache(folder, tmp_path / "hub")
    await worker(store, "torch")
    known = pb.ModelVersion(name="other", version="1", pool="p", tier="quality", context_length=8)
    await store.txn(puts=[Put(keys.key_of(known), keys.encode(known))])
    push = ["models", "push", snapshot, "--unsigned", "--blobs", (tmp_path / "blobs").as_uri()]
    pushed = await weir(*push)
    assert pushed.code == 0, pushed.err
    for line in (
        "name     tiny-1b (the cache's; --name says another)",
        f"version  {REVISION[:12]} (of its revision; --version says another)",
        "pool     p (the only one with workers; --pool says another)",
        "tier     quality (as all of pool p; --tier says another)",
        "context  128 tokens (config.json's; --context-length says another)",
        "not sent, since no engine reads it: onnx/model.onnx (30 B)",
        "not sent, since no engine reads it: original/consolidated.00.pth (2 kB)",
        "not sent, since no engine reads it: pytorch_model.bin (512 B)",
        f"tiny-1b@{REVISION[:12]} is registered: 4 files",
    ):
        assert line in pushed.out
    made = (await versions(store))[f"tiny-1b@{REVISION[:12]}"]
    assert (made.pool, made.tier, made.context_length) == ("p", "quality", 128)
    assert made.provenance.source_uri == "https://huggingface.co/Somebody/Tiny-1B"
    assert made.provenance.revision == REVISION
    again = await weir(*push)
    assert "none new" in again.out, again.err
    renamed = await weir(*push, "--name", "mine", "--tier", "fast", "--dry-run")
    assert f"mine@{REVISION[:12]} would be registered" in renamed.out
    assert "tier" not in renamed.out


async def test_what_cannot_be_made_is_asked_for(weir: Operator, tmp_path: Path) -> None:
    push = ["models", "push", write_checkpoint(tmp_path / "My Model"), "--blobs", (tmp_path / "blobs").as_uri()]
    for option, value in (("--version", "1"), ("--pool", "p"), ("--tier", "fast")):
        asked = await weir(*push)
        assert (asked.code, asked.err.rstrip().endswith(f"say {option}")) == (1, True), asked.err
        push += [option, value]
    assert "my-model@1 would be" in (await weir(*push, "--dry-run", "--unsigned")).out


def test_every_option_that_a_push_names_is_there() -> None:
    command: Any = COMMANDS["models"]
    flags = {flag for each in parameters(resolve(command["push"])) for flag in each.flags}
    sources = [*(ROOT / "libs/artifacts").glob("*.py"), *(ROOT / "services/cli/commands").glob("models_[cdp]*.py")]
    named = {flag for path in sources for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", path.read_text())}
    assert len(named) > 10
    # Of `weir models verify`, in the same file, and of Hugging Face's own command.
    assert named - flags <= {"--files", "--local-dir"}
    from libs.artifacts.folder import _WANTED

    for name in (*_WANTED, "tier", "context_length"):  # describe's own words: "say --context-length"
        assert f"--{name.replace('_', '-')}" in flags


SAMPLING = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.25, "repetition_penalty": 1.5}


async def test_what_a_checkpoint_says_of_sampling_is_shown(weir: Operator, store: MemoryStore, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    said = {**SAMPLING, "do_sample": True, "max_new_tokens": 2048, "num_beams": 4, "no_repeat_ngram_size": 0}
    (folder / "generation_config.json").write_text(json.dumps(said))
    pushed = await weir(*words(folder, tmp_path))
    assert pushed.code == 0, pushed.err
    assert "note: generation_config.json: num_beams is 4, which nobody does here" in pushed.out
    assert "no_repeat" not in pushed.out
    version = (await versions(store))["m@1"]
    assert version.sampling_defaults.max_tokens == 128, "no more than its context"
    shown = (await weir("describe", "model", "m@1")).out
    for name, value in {**SAMPLING, "max_tokens": 128}.items():
        assert re.search(rf"{name}[:= ]+{value}", shown), shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_progress_is_for_terminals_alone(weir: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = await weir(*words(write_checkpoint(tmp_path / "model"), tmp_path))
    assert (pushed.code, pushed.err) == (0, "")
    assert re.search(r"4 files, [\d.]+ kB; 4 new \([\d.]+ kB, [\d.]+ [kMG]?B/s\)", pushed.out), pushed.out
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    terminal_line("sending\x1b[2J" + "x" * 500)
    terminal_line("")
    assert re.fullmatch(r"\r\x1b\[Ksending\\u001b\[2Jx{10,500}\r\x1b\[K", shown.getvalue())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    terminal_line("sending")
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]
