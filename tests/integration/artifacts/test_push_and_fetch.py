"""From a folder to a store and back: what is there is right, or it is not there."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import (
    BlobStoreUnavailable,
    FetchError,
    LocalBlobStore,
    Options,
    PushError,
    check_blobs,
    fetch,
    make_key,
    manifest_digest,
    push,
    upload,
    verify,
)
from libs.artifacts.blobs import untold

FILES = {
    "config.json": json.dumps({"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 512}),
    "generation_config.json": json.dumps({"eos_token_id": 7, "temperature": 0.5, "max_new_tokens": 99}),
    "tokenizer.json": "the tokenizer",
    "tokenizer_config.json": json.dumps({"chat_template": "{{ messages }}"}),
    "parts/model-1.safetensors": "w" * 5000,
    "parts/model-2.safetensors": "v" * 3_000_000,
    "schema.json": "{}",
}
OPTIONS = Options(name="weir-fast", version="2", tier="fast", pool="demo", metrics={"loss": 0.25}, base="weir-fast@1")
NOW = 1_800_000_000.0


class Watched(LocalBlobStore):
    """A store whose every call can be watched and made to fail."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.got: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self.before_put: Callable[[Path], None] = lambda path: None
        self.fail_after = 1000

    async def put(self, digest: str, source: Any, told: Any = untold) -> bool:
        self.before_put(source)
        return await super().put(digest, source, told)

    async def get(self, digest: str, sink: BinaryIO) -> int:
        if len(self.got) >= self.fail_after:
            sink.write(b"half of")
            raise BlobStoreUnavailable("the connection was lost")
        self.got.append(digest)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await super().get(digest, sink)
        finally:
            self.at_once -= 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    for name, content in FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(content)
    (made / ".git").mkdir()
    (made / ".git" / "config").write_text("hidden")
    return made


@pytest.fixture
def store(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "blobs")


def content_of(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }


def blob(store_root: Path, content: str) -> Path:
    digest = hashlib.sha256(content.encode()).hexdigest()
    return store_root / "sha256" / digest[:2] / digest


async def test_there_and_back(folder: Path, store: Watched, tmp_path: Path) -> None:
    key = make_key()
    pushed = await push(folder, store, OPTIONS, [key])
    assert (pushed.uploaded, pushed.kept) == (len(FILES), 0)
    verify(pushed.version, pb.TrustPolicy(namespace="default", keys=[key.trusted()]), NOW)
    done = await fetch(pushed.version, store, tmp_path / "cache" / "m")
    assert (done.fetched, done.kept, done.fetched_bytes) == (len(FILES), 0, sum(map(len, FILES.values())))
    assert content_of(tmp_path / "cache" / "m") == FILES
    assert json.loads((tmp_path / "cache" / "m" / "manifest.json").read_text())["version"] == "2"
    await check_blobs(pushed.version, store)


async def test_what_the_folder_says(folder: Path, store: Watched) -> None:
    made = (await push(folder, store, OPTIONS)).version
    assert (made.architecture, made.context_length, list(made.eos_token_ids)) == ("LlamaForCausalLM", 512, [7])
    assert (made.sampling_defaults.temperature, made.sampling_defaults.max_tokens) == (0.5, 99)
    assert made.chat_template_sha256 == hashlib.sha256(b"{{ messages }}").hexdigest()
    assert made.tokenizer_sha256 == hashlib.sha256(b"the tokenizer").hexdigest()
    assert made.schema_sha256 == hashlib.sha256(b"{}").hexdigest()
    assert (made.provenance.base, dict(made.offline_metrics)) == ("weir-fast@1", {"loss": 0.25})
    assert (made.source, made.digest) == ("blobs:", manifest_digest(made))
    assert {each.path: each.role for each in made.artifacts} == {
        "config.json": "config",
        "generation_config.json": "config",
        "parts/model-1.safetensors": "weights",
        "parts/model-2.safetensors": "weights",
        "schema.json": "",
        "tokenizer.json": "tokenizer",
        "tokenizer_config.json": "tokenizer",
    }


async def test_again_is_the_same(folder: Path, store: Watched) -> None:
    first = await push(folder, store, OPTIONS)
    second = await push(folder, store, OPTIONS)
    assert (second.version, second.uploaded, second.kept) == (first.version, 0, len(FILES))


async def test_equal_files_are_stored_once(folder: Path, store: Watched) -> None:
    await push(folder, store, OPTIONS)
    (folder / "parts" / "model-1.safetensors").write_text("w" * 5001)
    second = await push(folder, store, Options(name="weir-fast", version="3", tier="fast", pool="demo"))
    assert (second.uploaded, second.kept) == (1, len(FILES) - 1)


async def test_a_file_that_changes_while_it_is_pushed(folder: Path, store: Watched) -> None:
    def change(path: Path) -> None:
        if path.name == "tokenizer.json":
            path.write_text("another tokenizer, as long or longer")

    store.before_put = change
    with pytest.raises(PushError, match=r"tokenizer\.json changed while"):
        await push(folder, store, OPTIONS)
    assert not blob(Path(store._root), FILES["tokenizer.json"]).exists()


async def test_links_are_not_followed(folder: Path, store: Watched, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of somebody else")
    (folder / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(PushError, match=r"notes\.txt is a link"):
        await push(folder, store, OPTIONS)
    (folder / "notes.txt").unlink()
    shutil.move(folder / "parts", tmp_path / "parts")
    (folder / "parts").symlink_to(tmp_path / "parts")
    with pytest.raises(PushError, match="parts is a link"):
        await push(folder, store, OPTIONS)


def listed(folder: Path, *paths: str) -> None:
    files = []
    for path in paths:
        content = (folder / path).read_bytes()
        files.append({"path": path, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)})
    (folder / "manifest.json").write_text(json.dumps({"files": files}))


@pytest.mark.parametrize("path", ["../secret", "parts/../config.json", "manifest.json"])
async def test_a_manifest_that_lists_what_it_must_not(folder: Path, store: Watched, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("of somebody else")
    (folder / "manifest.json").write_text("{}")
    listed(folder, "config.json", path)
    with pytest.raises(PushError, match="outside the folder"):
        await push(folder, store, OPTIONS)


async def test_a_listed_link(folder: Path, store: Watched, tmp_path: Path) -> None:
    shutil.move(folder / "parts", tmp_path / "parts")
    (folder / "parts").symlink_to(tmp_path / "parts")
    listed(folder, "config.json", "parts/model-1.safetensors")
    with pytest.raises(PushError, match="is a link"):
        await push(folder, store, OPTIONS)


async def test_only_listed_files_are_pushed(folder: Path, store: Watched) -> None:
    listed(folder, "config.json", "tokenizer.json")
    made = (await push(folder, store, OPTIONS)).version
    assert [each.path for each in made.artifacts] == ["config.json", "tokenizer.json"]


async def test_a_manifest_that_is_wrong_about_a_file(folder: Path, store: Watched) -> None:
    listed(folder, "config.json", "tokenizer.json")
    (folder / "tokenizer.json").write_text("changed since")
    with pytest.raises(PushError, match=r"tokenizer\.json is not what manifest\.json says"):
        await push(folder, store, OPTIONS)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda folder: (folder / "tokenizer.json").write_text(""), "tokenizer.json is empty"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json is no JSON object"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is no JSON"),
        (lambda folder: (folder / "config.json").unlink(), "architecture"),
        (lambda folder: shutil.rmtree(folder), "is no folder"),
    ],
)
async def test_folders_that_are_refused(
    folder: Path, store: Watched, damage: Callable[[Path], object], complaint: str
) -> None:
    damage(folder)
    with pytest.raises(PushError, match=complaint):
        await push(folder, store, OPTIONS)


async def test_upload_brings_back_what_was_removed_meanwhile(folder: Path, store: Watched) -> None:
    made = (await push(folder, store, OPTIONS)).version
    lost = hashlib.sha256(FILES["tokenizer.json"].encode()).hexdigest()
    assert await store.set_aside(lost)
    assert [each.path for each in await upload(made, folder, store)] == ["tokenizer.json"]
    await check_blobs(made, store)


async def test_a_tampered_blob(folder: Path, store: Watched, tmp_path: Path) -> None:
    made = (await push(folder, store, OPTIONS)).version
    path = blob(tmp_path / "blobs", FILES["parts/model-2.safetensors"])
    path.chmod(0o644)
    with path.open("r+") as file:
        file.seek(2_999_999)
        file.write("x")
    with pytest.raises(FetchError, match=r"weir-fast@2: parts/model-2\.safetensors"):
        await fetch(made, store, tmp_path / "m")
    with pytest.raises(FetchError, match=r"model-2\.safetensors"):
        await check_blobs(made, store)
    assert not (tmp_path / "m").exists()


async def test_a_blob_that_grew_does_not_fill_the_disk(folder: Path, store: Watched, tmp_path: Path) -> None:
    made = (await push(folder, store, OPTIONS)).version
    path = blob(tmp_path / "blobs", FILES["tokenizer.json"])
    path.chmod(0o644)
    path.write_bytes(b"x" * (8 << 20))
    with pytest.raises(FetchError, match="more than the 13 bytes"):
        await fetch(made, store, tmp_path / "m")


async def test_a_missing_blob(folder: Path, store: Watched, tmp_path: Path) -> None:
    made = (await push(folder, store, OPTIONS)).version
    blob(tmp_path / "blobs", FILES["tokenizer.json"]).unlink()
    with pytest.raises(FetchError, match=r"weir-fast@2: tokenizer\.json: .*no blob"):
        await fetch(made, store, tmp_path / "m")


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "manifest.json", ".part-x", ""])
async def test_a_record_that_points_outside(store: Watched, tmp_path: Path, path: str) -> None:
    made = pb.ModelVersion(name="m", version="1", artifacts=[pb.Artifact(path=path, sha256="a" * 64, bytes=1)])
    with pytest.raises(FetchError, match="must not be the path"):
        await fetch(made, store, tmp_path / "deep" / "m")


async def test_an_interrupted_fetch_goes_on_where_it_was(folder: Path, store: Watched, tmp_path: Path) -> None:
    made = (await push(folder, store, OPTIONS)).version
    into = tmp_path / "m"
    store.fail_after = 3
    with pytest.raises(BlobStoreUnavailable):
        await fetch(made, store, into, concurrency=1)
    assert not into.exists()
    store.fail_after = 1000
    done = await fetch(made, store, into, concurrency=1)
    assert (done.fetched, done.kept) == (len(FILES) - 3, 3)
    assert len(store.got) == len(FILES)
    assert content_of(into) == FILES


async def test_what_a_killed_process_left(folder: Path, store: Watched, tmp_path: Path) -> None:
    """Half a file under its own name, a file under way, and one that no version has."""
    made = (await push(folder, store, OPTIONS)).version
    partial = tmp_path / ".m.partial"
    (partial / "parts").mkdir(parents=True)
    (partial / "parts" / "model-2.safetensors").write_text(FILES["parts/model-2.safetensors"][:1000])
    (partial / "tokenizer.json").write_text(FILES["tokenizer.json"])
    (partial / ".part-abc").write_text("half")
    (partial / "stranger").mkdir()
    (partial / "stranger" / "file").write_text("?")
    (partial / "config.json").symlink_to(folder / "config.json")
    done = await fetch(made, store, tmp_path / "m")
    assert (done.fetched, done.kept) == (len(FILES) - 1, 1)
    assert content_of(tmp_path / "m") == FILES
    assert not (tmp_path / "m" / "config.json").is_symlink()
    assert not partial.exists()


async def test_a_cancelled_fetch_leaves_no_folder(folder: Path, store: Watched, tmp_path: Path) -> None:
    made = (await push(folder, store, OPTIONS)).version
    reached = asyncio.Event()

    class Stuck(Watched):
        async def get(self, digest: str, sink: BinaryIO) -> int:
            if self.got:
                reached.set()
                await asyncio.Event().wait()
            return await super().get(digest, sink)

    task = asyncio.create_task(fetch(made, Stuck(tmp_path / "blobs"), tmp_path / "m", concurrency=1))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (tmp_path / "m").exists()
    assert not list((tmp_path / ".m.partial").rglob(".part-*"))
    assert (await fetch(made, store, tmp_path / "m")).kept == 1


async def test_a_folder_that_is_right_is_not_fetched_again(folder: Path, store: Watched, tmp_path: Path) -> None:
    made = (await push(folder, store, OPTIONS)).version
    await fetch(made, store, tmp_path / "m")
    store.got.clear()
    done = await fetch(made, store, tmp_path / "m")
    assert (done.fetched, done.kept, store.got) == (0, len(FILES), [])


@pytest.mark.parametrize(
    "damage",
    [
        lambda m: (m / "tokenizer.json").unlink(),
        lambda m: (m / "manifest.json").unlink(),
        lambda m: overwrite(m / "tokenizer.json", "The tokenizer"),
        lambda m: overwrite(m / "manifest.json", "{}"),
        lambda m: (m / "generation_extra.json").write_text("{}"),
    ],
)
async def test_a_folder_that_is_not_right_is_made_right(
    folder: Path, store: Watched, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    made = (await push(folder, store, OPTIONS)).version
    await fetch(made, store, tmp_path / "m")
    store.got.clear()
    damage(tmp_path / "m")
    await fetch(made, store, tmp_path / "m")
    assert content_of(tmp_path / "m") == FILES
    assert json.loads((tmp_path / "m" / "manifest.json").read_text())["name"] == "weir-fast"
    assert len(store.got) <= 1
    assert names_in(tmp_path) == [".m.lock", "blobs", "m", "model"]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def overwrite(path: Path, content: str) -> None:
    path.chmod(0o644)
    path.write_text(content)


async def test_only_some_roles(folder: Path, store: Watched, tmp_path: Path) -> None:
    made = (await push(folder, store, OPTIONS)).version
    wanted = {"tokenizer", "chat_template", "config"}
    await fetch(made, store, tmp_path / "m", roles=wanted)
    assert content_of(tmp_path / "m").keys() == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert not (tmp_path / "m" / "manifest.json").exists()
    assert (await fetch(made, store, tmp_path / "m", roles=wanted)).fetched == 0
    done = await fetch(made, store, tmp_path / "m")
    assert (done.fetched, done.kept) == (3, 4)


async def test_roles_of_a_record_that_tells_none(folder: Path, store: Watched, tmp_path: Path) -> None:
    made = (await push(folder, store, OPTIONS)).version
    for each in made.artifacts:
        each.role = ""
    await fetch(made, store, tmp_path / "m", roles={"tokenizer"})
    assert content_of(tmp_path / "m").keys() == {"tokenizer.json", "tokenizer_config.json"}


async def test_many_at_the_same_place_fetch_once(folder: Path, store: Watched, tmp_path: Path) -> None:
    made = (await push(folder, store, OPTIONS)).version
    await asyncio.gather(*(fetch(made, store, tmp_path / "m") for _ in range(4)))
    assert len(store.got) == len(FILES)
    assert content_of(tmp_path / "m") == FILES


async def test_files_at_once_are_bounded(folder: Path, store: Watched, tmp_path: Path) -> None:
    made = (await push(folder, store, OPTIONS)).version
    await fetch(made, store, tmp_path / "m", concurrency=2)
    assert store.most_at_once <= 2


async def test_another_version_at_the_same_place_takes_over_what_it_shares(
    folder: Path, store: Watched, tmp_path: Path
) -> None:
    first = (await push(folder, store, OPTIONS)).version
    await fetch(first, store, tmp_path / "m")
    (folder / "tokenizer.json").write_text("the next tokenizer")
    second = (await push(folder, store, Options(name="weir-fast", version="3", tier="fast", pool="demo"))).version
    store.got.clear()
    done = await fetch(second, store, tmp_path / "m")
    assert (done.fetched, done.kept, len(store.got)) == (1, len(FILES) - 1, 1)
    assert content_of(tmp_path / "m")["tokenizer.json"] == "the next tokenizer"


async def test_the_demo_models_are_as_their_manifests_say(store: Watched, tmp_path: Path) -> None:
    """The folders of this repository, by the form of manifest that they have had all along."""
    root = Path(__file__).parents[3]
    source = root / "models" / "demo" / "fast"
    pushed = await push(source, store, Options(tier="fast", pool="demo", max_tokens=256, built_at=time.time()))
    await fetch(pushed.version, store, tmp_path / "m")
    mine = json.loads((source / "manifest.json").read_text())
    fetched = json.loads((tmp_path / "m" / "manifest.json").read_text())
    assert fetched["files"] == mine["files"]
    assert pushed.version.chat_template_sha256 == mine["chat_template_sha256"]
    assert [*pushed.version.eos_token_ids] == mine["eos_token_ids"]
