"""A8: a model's name belongs to its namespace, its content is what was signed, and what is read is what was checked."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import TrustError, TrustFault, make_key, manifest_digest, sign, verify
from libs.clock import SystemClock
from libs.errors import WeirError
from libs.resources.checks.models import check_alias, check_model
from libs.resources.snapshot import RegistrySnapshot
from libs.texts import TextStore
from libs.versions.manifest import read_manifest
from services.worker import model_files
from services.worker.config import Settings
from services.worker.engines.port import EngineLoadError
from services.worker.engines.tensorrt_llm import TensorrtSettings, build
from services.worker.engines.vllm_files import read_checkpoint
from services.worker.model_files import ModelFiles
from tests.support.tokenizer import artifacts_in, write_byte_tokenizer

FILES = {"config.json": b"{}", "tokenizer.json": b'{"tokens": 1}', "model.safetensors": b"weights" * 1000}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    listed = []
    for name, content in FILES.items():
        (made / name).write_bytes(content)
        listed.append({"path": name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)})
    (made / "manifest.json").write_text(json.dumps({"name": "m", "version": "1", "files": listed}))
    return made


def replace(path: Path) -> None:
    """Puts another file of the same length in the place of one, as whoever may write to the folder can."""
    other = path.with_name("other")
    other.write_bytes(bytes(reversed(path.read_bytes())))
    os.replace(other, path)


# ---- names and signatures ------------------------------------------------------------------------------------------


def version(**fields: Any) -> pb.ModelVersion:
    return pb.ModelVersion(**{"name": "weir-fast", "version": "1", "pool": "p", "source": "blobs:", **fields})


def test_a8_a_name_belongs_to_the_namespace_that_has_versions_of_it() -> None:
    snapshot = RegistrySnapshot(model_versions={"weir-fast@1": version(namespace="team")})
    for namespace in ("", "others"):
        faults = list(check_model(version(version="2", namespace=namespace), snapshot))
        assert [each.message for each in faults if each.field == "metadata.name"] == [
            "the name 'weir-fast' belongs to namespace 'team'"
        ]
    own = check_model(version(version="2", namespace="team"), snapshot)
    assert not [each for each in own if "belongs" in each.message]


def test_a8_an_alias_cannot_take_the_name_of_another_namespaces_model() -> None:
    snapshot = RegistrySnapshot(
        model_versions={
            "weir-fast@1": version(namespace="team"),
            "look-alike@1": version(name="look-alike", namespace="others"),
        }
    )

    def faults(target: str) -> list[str]:
        targets = [pb.AliasTarget(model_version=target, weight=100)]
        return [each.message for each in check_alias(pb.Alias(name="weir-fast", targets=targets), snapshot)]

    assert faults("look-alike@1") == ["the name 'weir-fast' belongs to namespace 'team'"]
    assert faults("weir-fast@1") == []


def test_a8_where_files_come_from_is_signed() -> None:
    key = make_key()
    policy = pb.TrustPolicy(namespace="default", keys=[key.trusted()])
    signed = version()
    signed.signature = sign(signed, key)
    verify(signed, policy, 0.0)
    moved = version(source="/elsewhere", signature=signed.signature)
    assert manifest_digest(moved) != manifest_digest(signed)
    with pytest.raises(TrustError) as caught:
        verify(moved, policy, 0.0)
    assert caught.value.fault is TrustFault.OTHER_MANIFEST


def test_a8_workers_take_only_signed_versions_unless_told_otherwise() -> None:
    fields = dict(zip(Settings.__struct_fields__[::-1], Settings.__struct_defaults__[::-1], strict=False))
    assert fields["require_signatures"] is True


# ---- what is read is what was checked ------------------------------------------------------------------------------


def test_a8_a_file_replaced_after_its_hash_is_not_the_one_that_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = model_files._check

    def check_then_replace(descriptor: int, file: Any, path: Path) -> None:
        check(descriptor, file, path)
        replace(path)

    monkeypatch.setattr(model_files, "_check", check_then_replace)
    files = ModelFiles.of(folder, "m@1", required=True)
    descriptor = files.open("model.safetensors")
    with os.fdopen(descriptor, "rb") as opened:
        assert opened.read() == FILES["model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() != FILES["model.safetensors"]
    with pytest.raises(EngineLoadError, match="sha256"):
        files.open("model.safetensors")


def test_a8_a_file_written_while_it_is_hashed_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "model.safetensors"
    preadv = os.preadv

    def write_then_read(descriptor: int, buffers: Any, position: int) -> int:
        count = preadv(descriptor, buffers, position)
        if not count:
            path.write_bytes(bytes(reversed(FILES[path.name])))
        return count

    monkeypatch.setattr(os, "preadv", write_then_read)
    with pytest.raises(EngineLoadError, match="changed while it was verified"):
        ModelFiles.of(folder, "m@1", required=True).open(path.name)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a8_every_file_that_is_read_must_be_listed(folder: Path, name: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"] = [each for each in manifest["files"] if each["path"] != name]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    files = ModelFiles.of(folder, "m@1", required=True)
    with pytest.raises(EngineLoadError, match=f"does not list {name}"):
        files.read(name)
    with pytest.raises(EngineLoadError, match=f"does not list {name}"):
        name in files  # noqa: B015


@pytest.mark.parametrize("name", [*FILES, ""])
def test_a8_a_folder_that_changed_while_an_engine_read_its_paths_is_refused(folder: Path, name: str) -> None:
    seal = read_checkpoint(folder, "m@1", require_manifest=True).seal
    seal.require_unbroken()
    if name:
        replace(folder / name)
    else:
        other = folder.with_name("aside")
        folder.rename(other)
        folder.mkdir()
        for file in other.iterdir():
            os.link(file, folder / file.name)
    with pytest.raises(EngineLoadError, match="changed while the engine loaded it"):
        seal.require_unbroken()


@pytest.mark.parametrize("when", ["before", "while"])
async def test_a8_tensorrt_llm_checks_its_folder_before_and_after_it_loads(folder: Path, when: str) -> None:
    stopped = asyncio.Event()

    class Library:
        llmapi = SimpleNamespace(KvCacheConfig=lambda **_: None)

        class LLM:
            def __init__(self, **_: Any) -> None:
                if when == "while":
                    replace(folder / "model.safetensors")

            def shutdown(self) -> None:
                stopped.set()

    if when == "before":
        replace(folder / "model.safetensors")
    settings = TensorrtSettings(model="m@1", folder=str(folder))
    engine = build(settings, clock=SystemClock(), load_module=lambda: Library)
    with pytest.raises(EngineLoadError, match=r"sha256|changed while"):
        await engine.start(lambda _: None)
    assert stopped.is_set() == (when == "while")


def test_a8_the_cache_vouches_for_descriptors_not_for_paths(folder: Path, tmp_path: Path) -> None:
    from libs.versions.weight_cache import WeightCache

    manifest = read_manifest(folder, "m@1")
    cache = WeightCache(tmp_path / "cache", 1 << 20, hard_links=False)
    files = ModelFiles(cache.fetch(folder, manifest), manifest, known=cache.knows)
    os.close(files.open("model.safetensors"))
    replace(files.folder / "model.safetensors")
    with pytest.raises(EngineLoadError, match="sha256"):
        files.open("model.safetensors")


async def test_a8_gateways_take_no_tokenizer_that_the_record_does_not_list(tmp_path: Path) -> None:
    folder = tmp_path / "words"
    folder.mkdir()
    write_byte_tokenizer(folder)

    def texts() -> TextStore:
        return TextStore(blobs="", directory=None, max_bytes=0, clock=SystemClock(), chance=lambda: 0.0)

    known = version(source=str(folder), digest="d" * 64, artifacts=artifacts_in(folder))
    assert (await texts().load(known)).encode("a") == [97]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "Say what I want."}))
    with pytest.raises(WeirError, match="files of weir-fast@1"):
        await texts().load(known)
