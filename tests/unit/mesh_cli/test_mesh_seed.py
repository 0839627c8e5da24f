"""The seed file becomes records of the registry."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from weir.registry.v1 import registry_pb2

from libs.artifacts import check_blobs, open_store, verify
from libs.authority.identity import Operator
from libs.config import TlsFiles
from libs.pki import issue
from libs.registry import MemoryStore, Put, RegistrySnapshot, plan_of, price_book, slo_of, snapshot_of
from libs.registry.keys import ROOT as ROOT_KEY
from libs.registry.keys import encode, key_of
from libs.resources.codec import kind_of
from libs.service.process import serve
from services.cli.mesh import seed
from services.cli.mesh.site import ROOT
from services.registry.app import build
from services.registry.config import Settings

SEED = seed.load(ROOT)


def test_the_files_are_resources_and_the_packs_become_policies() -> None:
    made = {(kind_of(each).plural, each.metadata.name): each for each in seed.resources(ROOT)}  # type: ignore[union-attr]
    for name in SEED.policies:
        rules = made["safety", name].safety_policy.rules
        assert len({rule.id for rule in rules}) == len(rules) > 0
    tenants = {name: each.tenant for (plural, name), each in made.items() if plural == "tenants"}
    assert tenants["acme"].plan == tenants["globex"].plan == registry_pb2.PLAN_PAID
    assert made["limits", "acme/*"].limits == made["limits", "globex/*"].limits
    assert made["limits", "tiny/*"].limits.requests_per_minute < 10
    assert SEED.keys.keys() == tenants.keys()
    assert SEED.keys["admin"] == ("admin", "models.read")


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    shutil.copytree(ROOT / seed.FOLDER, tmp_path / seed.FOLDER)
    shutil.copytree(ROOT / "services/safety/packs", tmp_path / "services/safety/packs")
    (tmp_path / seed.FOLDER / "zz.yaml").write_text("kind: Tenat")
    with pytest.raises(seed.SeedError, match=r"zz\.yaml:1: .*Tenat"):
        seed.resources(tmp_path)
    (tmp_path / seed.FOLDER / "zz.yaml").write_text("a: [")
    with pytest.raises(seed.SeedError, match=r"zz\.yaml"):
        seed.resources(tmp_path)


@contextlib.asynccontextmanager
async def registry(tmp_path: Path) -> AsyncIterator[tuple[MemoryStore, Callable[..., Awaitable[seed.Seeded]]]]:
    """A registry of its own, and what plants the seed there."""
    tls = {}
    for name, who in (("registry", "registry"), ("operator", Operator("jane"))):
        files = issue(tmp_path / "pki", who)
        tls[name] = TlsFiles(files.ca, files.cert, files.key)
    (tmp_path / "pepper").write_text("0123456789abcdef")
    config = Settings(
        service="registry",
        instance="registry-0",
        tls=tls["registry"],
        pepper_file=str(tmp_path / "pepper"),
        audit_target="",
        owners=("operator:jane",),
        drain_seconds=0.1,
    )
    store = MemoryStore()
    async with serve(await build(config, store=store), config) as running, asyncio.timeout(60):
        await running.ready.wait()

        async def plant(root: Path = ROOT, **keys: str) -> seed.Seeded:
            return await seed.plant(
                root,
                address=f"127.0.0.1:{running.port}",
                tls=tls["operator"],
                operator="jane",
                keys=keys,
                blobs=(tmp_path / "blobs").as_uri(),
                signing_key=tmp_path / "secrets" / "model-signing.key",
            )

        yield store, plant


async def planted_in(store: MemoryStore) -> RegistrySnapshot:
    return snapshot_of((await store.get_prefix(ROOT_KEY)).kvs, store.revision)


async def test_only_what_is_missing_is_planted(tmp_path: Path) -> None:
    """On a registry of its own, twice; between the two an operator changes what was planted."""
    async with registry(tmp_path) as (store, plant):
        first = await plant()
        planted = await planted_in(store)
        assert (set(planted.plans), len(planted.slos), len(planted.prices)) == ({"paid", "free"}, 4, 7)
        assert planted.limits["tiny", "*"].spend_microusd > 0
        names = {json.loads((ROOT / spec.folder / "manifest.json").read_text())["name"] for spec in SEED.models}
        assert [step.WhichOneof("step") for step in plan_of(planted, "tiny").ladder] == ["cap_output", "smaller_model"]
        assert not plan_of(planted, "acme").ladder
        assert first.models == ["weir-fast", "weir-quality"]
        assert first.predicting[0] == "cancer-gbdt"
        for version in planted.model_versions.values():
            predicts = version.HasField("prediction")
            tier = version.prediction.profile if predicts else version.tier
            assert slo_of(planted, "predict" if predicts else "generate", tier)
        assert all(price_book(planted).find(f"{name}@1") for name in names)
        operators = registry_pb2.PlanPolicy(id="free", weight=3)
        revision = (await store.txn(puts=[Put(key_of(operators), encode(operators))])).revision
        again = await plant(**first.keys)
        assert again == first
        assert store.revision == revision


async def test_models_are_pushed_signed_and_trusted(tmp_path: Path) -> None:
    async with registry(tmp_path) as (store, plant):
        await plant()
        planted = await planted_in(store)
        blobs = open_store((tmp_path / "blobs").as_uri())
        for spec in SEED.models:
            manifest = json.loads((ROOT / spec.folder / "manifest.json").read_text())
            version = planted.model_versions[f"{manifest['name']}@{manifest['version']}"]
            assert (version.tier, version.source) == (spec.tier, "blobs:")
            assert {a.path: a.sha256 for a in version.artifacts} == {f["path"]: f["sha256"] for f in manifest["files"]}
            assert version.context_length >= spec.max_tokens == version.sampling_defaults.max_tokens
            assert verify(version, planted.trust["default"], 0, required=True).key_ids
            await check_blobs(version, blobs)


async def test_other_files_under_a_registered_version_are_refused(tmp_path: Path) -> None:
    async with registry(tmp_path) as (_, plant):
        await plant()
        other = tmp_path / "checkout"
        for part in ("deploy", "services/safety/packs", *(spec.folder for spec in SEED.models)):
            shutil.copytree(ROOT / part, other / part)
        folder = other / SEED.models[0].folder
        (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
        (folder / "manifest.json").write_text(
            json.dumps({**json.loads((folder / "manifest.json").read_text()), "files": []})
        )
        with pytest.raises(seed.SeedError, match="registered with other files"):
            await plant(other)
