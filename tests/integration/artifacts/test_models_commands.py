"""`weir models`, against the registry itself over mTLS and a blob store on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import ensure_key, fetch, open_store
from libs.registry import MemoryStore, Put, keys
from tests.support.operator import ROOT, Answer, Operator


class Mesh:
    """A state directory with a registry and a blob store behind it."""

    def __init__(self, state: Path, store: MemoryStore) -> None:
        self.state = state
        self.store = store
        self.operator = Operator(state)
        self.blobs = state / "blobs"
        self.key = ensure_key(state / "secrets" / "model-signing.key")
        self.folder = state / "model"
        shutil.copytree(ROOT / "models" / "demo" / "fast", self.folder)
        (self.folder / "manifest.json").unlink()

    async def weir(self, *words: str) -> Answer:
        return await self.operator("models", *words)

    async def push(self, version: str, *more: str) -> Answer:
        return await self.weir(
            "push", str(self.folder), "--name", "m", "--version", version, "--tier", "fast", "--pool", "p", *more
        )

    async def trust_own_key(self) -> None:
        await self.weir("keys", "trust", str(self.state / "secrets" / "model-signing.key.pub"), "--note", "ours")

    def change_weights(self, numbers: str) -> None:
        """The last ones of the last tensor."""
        path = self.folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[: -len(numbers)] + numbers.encode())

    def stored_blobs(self) -> int:
        return sum(1 for path in self.blobs.rglob("*") if path.is_file())


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    made = Mesh(tmp_path, MemoryStore())
    async with made.operator.registry(made.store):
        made.operator.describe(blobs=made.blobs.as_uri())
        yield made


async def test_push(mesh: Mesh, tmp_path: Path) -> None:
    rehearsed = (await mesh.push("1", "--dry-run", "--metric", "loss=0.333", "--builder", "nightly", "--json")).json()
    assert (rehearsed["dry_run"], mesh.stored_blobs()) == (True, 0)
    made = (
        await mesh.push("1", "--metric", "loss=0.333", "--builder", "nightly", "--reason", "first", "--json")
    ).json()
    assert (made["source"], made["uploaded"], made["offline_metrics"]) == ("blobs:", 5, {"loss": 0.333})
    assert made["digest"] == rehearsed["digest"]
    assert mesh.key.key_id in made["signature"]

    again = await mesh.push("1", "--metric", "loss=0.333", "--builder", "nightly")
    assert (again.code, "none new" in again.out) == (0, True), again.err
    assert mesh.key.key_id in (await mesh.operator("describe", "models", "m@1")).out
    await mesh.operator("set", "model", "m@1", "--label", "team=a")
    assert (await mesh.weir("sign", "m@1")).code == 0
    assert (await mesh.operator("get", "models", "-l", "team=a", "-o", "name")).out == "models/m@1\n"

    mesh.change_weights("others")
    blobs = mesh.stored_blobs()
    other = await mesh.push("1")
    assert (other.code, other.err.count("\n")) == (1, 1)
    assert "exists with other content" in other.err
    assert "(ALREADY_EXISTS)" in other.err
    assert mesh.stored_blobs() == blobs, "a refused push uploads nothing"

    # Tier and pool are those of the version before.
    second = (await mesh.weir("push", str(mesh.folder), "--name", "m", "--version", "2", "--json")).json()
    assert (second["tier"], second["pool"], second["uploaded"]) == ("fast", "p", 1)
    record = pb.ModelVersion(name="m", version="2")
    for each in second["artifacts"]:
        record.artifacts.add(path=each["path"], sha256=each["sha256"], bytes=each["bytes"], role=each["role"])
    await fetch(record, open_store(mesh.blobs.as_uri()), tmp_path / "fetched")
    assert (tmp_path / "fetched" / "model.safetensors").read_bytes().endswith(b"others")


async def test_pushes_that_are_refused(mesh: Mesh) -> None:
    nowhere = await mesh.weir("push", str(mesh.state / "nowhere"))
    assert (nowhere.code, "is no folder" in nowhere.err) == (1, True)
    unversioned = await mesh.weir("push", str(mesh.folder))
    assert (unversioned.code, "does not say its version" in unversioned.err) == (1, True)
    bad = await mesh.push("1", "--safety-policy", "gone@1")
    assert (bad.code, "m@1 spec.safety_policies[0]" in bad.err) == (1, True)
    assert (await mesh.push("1", "--metric", "loss")).code == 1
    assert (await mesh.push("1", "--blobs", "ftp://host")).code == 1
    assert mesh.stored_blobs() == 0


async def test_trust(mesh: Mesh) -> None:
    """From nobody is asked to a rotated key."""
    own = mesh.state / "secrets" / "model-signing.key"
    assert (await mesh.operator("get", "trust")).out == "no trust\n"
    assert (await mesh.push("1", "--unsigned")).code == 0
    trusted = await mesh.weir("keys", "trust", f"{own}.pub", "--note", "ours", "--reason", "begin")
    assert "will refuse m@1: m@1 is not signed" in trusted.out
    refused = await mesh.push("2", "--unsigned")
    assert (refused.code, "[spec.signature]" in refused.err) == (1, True)
    assert mesh.key.key_id[:12] in (await mesh.weir("sign", "m@1")).out
    assert (await mesh.weir("verify", "m@1", "--files", "--json")).json()["keys"] == [mesh.key.key_id]
    assert "(ours)" in (await mesh.weir("verify", "m@1")).out

    # Somebody else's key signs nothing here.
    other = mesh.state / "other.key"
    other_id = (await mesh.weir("keys", "new", str(other), "--json")).json()["key_id"]
    assert (await mesh.weir("keys", "new", str(other))).code == 1
    foreign = await mesh.push("2", "--key", str(other))
    assert (foreign.code, "no key that signed it is trusted" in foreign.err) == (1, True)

    # Two of two, then the first one ends.
    both = (await mesh.weir("keys", "trust", f"{other}.pub", "--threshold", "2", "--json")).json()
    assert len(both["trust_policy"]["keys"]) == 2
    assert list(both["refused_versions"]) == ["m@1"]
    assert (await mesh.push("2")).code == 1
    assert (await mesh.push("2", "--key", str(own), "--key", str(other))).code == 0
    assert (await mesh.weir("verify", "m@2")).code == 0
    assert (await mesh.weir("keys", "trust", f"{other}.pub", "--threshold", "1")).code == 0
    ended = await mesh.weir("keys", "expire", mesh.key.key_id[:8])
    assert "will refuse m@1" in ended.out
    assert "those that serve it now will stop" in ended.out
    assert "m@2" not in ended.out
    late = await mesh.weir("verify", "m@1")
    assert (late.code, "not trusted any more" in late.err) == (1, True)
    assert (await mesh.weir("keys", "distrust", mesh.key.key_id)).code == 0
    last = await mesh.weir("keys", "distrust", other_id)
    assert (last.code, "spec.keys" in last.err) == (1, True)
    assert (await mesh.weir("keys", "expire", "ffff")).code == 1
    assert other_id in (await mesh.operator("describe", "trust", "default")).out


async def test_a_tampered_record(mesh: Mesh) -> None:
    """Somebody who can write to etcd, but has no key, changes what a version is."""
    await mesh.trust_own_key()
    assert (await mesh.push("1")).code == 0
    stored = await mesh.store.get(keys.key("models", "m@1"))
    assert stored is not None
    changed = stored.value.replace(b'"max_tokens":0', b'"max_tokens":7').replace(b"tokenizer.json", b"tokenizer.jsom")
    assert changed != stored.value
    await mesh.store.txn(compares=[], puts=[Put(keys.key("models", "m@1"), changed)])
    checked = await mesh.weir("verify", "m@1", "--json")
    assert (checked.code, json.loads(checked.out)["holds"]) == (1, False)
    assert "digest" in json.loads(checked.out)["fault"]


async def test_a_tampered_file(mesh: Mesh) -> None:
    assert (await mesh.push("1", "--metric", "loss=0.5")).code == 0
    largest = max((path for path in mesh.blobs.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.chmod(0o644)
    content = largest.read_bytes()
    largest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert (await mesh.weir("verify", "m@1")).code == 0
    checked = await mesh.weir("verify", "m@1", "--files")
    assert (checked.code, "model.safetensors" in checked.err) == (1, True)
    assert "1 new" in (await mesh.push("1", "--repair")).out
    assert (await mesh.weir("verify", "m@1", "--files")).code == 0


async def test_pins_and_garbage(mesh: Mesh) -> None:
    for number in range(1, 5):
        mesh.change_weights(f"weights {number}")
        assert (await mesh.push(str(number))).code == 0
    pointed = await mesh.operator("set", "alias", "m", "targets=[{model_version: m@4, weight: 100}]", "--create")
    assert pointed.code == 0, pointed.err
    pinned = await mesh.operator("set", "pin", "m@2", "reason=a customer compares with it", "warm=true", "--create")
    assert pinned.code == 0, pinned.err
    unreasoned = await mesh.operator("set", "pin", "m@1", "--create")
    assert (unreasoned.code, "spec.reason" in unreasoned.err) == (1, True)

    young = (await mesh.weir("gc", "--keep", "0", "--json")).json()
    assert (young["versions"], young["blobs"]) == ([], [])
    assert "younger than 7 days" in young["kept"]["m@1"]
    now = ("--keep", "1", "--version-grace", "0", "--blob-grace", "0")
    said = (await mesh.weir("gc", *now, "--dry-run", "--json")).json()
    assert (said["versions"], len(said["blobs"])) == (["m@1", "m@3"], 2)
    before = mesh.stored_blobs()
    done = (await mesh.weir("gc", *now, "--json")).json()
    assert done["versions"] == ["m@1", "m@3"]
    assert mesh.stored_blobs() == before - 2
    assert done["kept"]["m@2"] == ["pin"]
    for kept in ("m@2", "m@4"):
        assert (await mesh.weir("verify", kept, "--files")).code == 0
    assert (await mesh.operator("delete", "pin", "m@2")).code == 0
    told = await mesh.weir("gc", *now)
    assert "gone" in told.out
    assert "1 files were removed" in told.out
    assert (await mesh.operator("get", "models", "m@2")).code == 1
