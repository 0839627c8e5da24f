"""A model version from its folder to all traffic, or back: pushed, mirrored, tried, judged; with real weights."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from weir.registry.v1 import registry_pb2 as pb

from libs.rollouts import phase_of
from loadtest.overload.samples import OK
from loadtest.rollout.site import RolloutSite, site_of
from loadtest.rollout.traffic import Traffic
from tests.support.mesh import ROOT, Mesh, eventually

FAST = ROOT / "models" / "demo" / "fast"
RATE = 8.0
END = 150.0


def model_folder(folder: Path, *, damage: bool = False) -> Path:
    """The small demo model, without the manifest that names it; `damage` shuffles one layer's weights."""
    shutil.copytree(FAST, folder)
    (folder / "manifest.json").unlink()
    if damage:
        weights = load_file(folder / "model.safetensors")
        name = next(name for name in sorted(weights) if "down_proj" in name)
        flat = weights[name].reshape(-1)
        order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(7))
        weights[name] = (flat[order] * 8.0).reshape(weights[name].shape)
        save_file(weights, folder / "model.safetensors")
    return folder


@asynccontextmanager
async def calling(site: RolloutSite, alias: str) -> AsyncIterator[Traffic]:
    """Callers of the alias while the block runs."""
    traffic = site.traffic(alias, rate=RATE, users=200, seed=5)
    task = asyncio.create_task(traffic.run())
    try:
        yield traffic
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def baseline(site: RolloutSite, folder: Path, name: str) -> None:
    """name@1 behind the alias of that name, answering."""
    await site.push_folder(model_folder(folder), name, "1")
    await site.alias(name, f"{name}@1")
    await site.answered([name])


async def history(site: RolloutSite, alias: str) -> list[str]:
    """The actions that the registry remembers of an alias's rollouts, oldest first."""
    found = await site.weir("history", "rollouts", alias)
    return [entry["action"] for entry in reversed(found["entries"])]


async def test_damaged_weights_are_found_out_by_mirrored_traffic_and_reach_nobody(mesh: Mesh, tmp_path: Path) -> None:
    async with site_of(mesh, tmp_path) as site:
        await baseline(site, tmp_path / "good", "damaged")
        bad = await site.push_folder(model_folder(tmp_path / "bad", damage=True), "damaged", "2")
        async with calling(site, "damaged") as traffic:
            started = await site.start(
                "damaged",
                bad,
                *(
                    "--shadow",
                    "100",
                    "--set",
                    "shadow.min_samples=20",
                    "--set",
                    "shadow.min_duration=2s",
                    "--steps",
                    "10",
                ),
                *("--gate", "score:shadow_exact>=0.8,must", "--gate", "error_rate<=5%"),
                reason="an end-to-end test",
            )
            ended = await site.ended("damaged", started, seconds=END)
            phases = [phase_of(change.rollout) for change in site.log.of("damaged", started)]
            answered = len(traffic.seen)
        explained = site.mesh.weir("rollout", "explain", "damaged").stdout
    assert phase_of(ended) == pb.ROLLOUT_PHASE_ROLLED_BACK, ended
    assert pb.ROLLOUT_PHASE_SHADOW in phases
    assert pb.ROLLOUT_PHASE_CANARY not in phases
    assert "shadow_exact" in ended.state.reason or "exact" in ended.state.reason
    assert answered >= 10
    assert {seen.version for seen in traffic.seen if seen.outcome == OK} == {"damaged@1"}
    assert ended.state.reason in explained.replace("\n", " ") or "exact" in explained

    def audited() -> bool:
        records = [entry["record"] for entry in mesh.weir_json("audit", "tail", "--limit", "300")["records"]]
        return any("exact" in record.get("admin", {}).get("reason", "") for record in records)

    # The registry's service hands over what the controller wrote, when it looks the next time.
    eventually(audited, seconds=60.0, what="the decision in the audit log")


async def test_a_healthy_version_is_promoted_and_the_old_one_stays_warm(mesh: Mesh, tmp_path: Path) -> None:
    async with site_of(mesh, tmp_path) as site:
        await baseline(site, tmp_path / "one", "healthy")
        good = await site.push_folder(model_folder(tmp_path / "two"), "healthy", "2")
        async with calling(site, "healthy") as traffic:
            started = await site.start(
                "healthy",
                good,
                *("--steps", "20,60", "--step-duration", "3s", "--step-samples", "15", "--set", "sticky=user"),
                *("--gate", "error_rate<=20%", "--gate", "score:mean_logprob<=2"),
                reason="an end-to-end test",
            )
            ended = await site.ended("healthy", started, seconds=END)
            promoted = ended.state.ended_at.ToNanoseconds() / 1e9
            async with asyncio.timeout(60):
                while len(late := [seen for seen in traffic.seen if seen.sent > promoted + 1.0]) < 10:
                    await _next(traffic)
        snapshot = site.view.snapshot
        actions = await history(site, "healthy")
    assert phase_of(ended) == pb.ROLLOUT_PHASE_PROMOTED, ended
    assert [target.model_version for target in snapshot.aliases["healthy"].targets] == [good]
    assert {seen.version for seen in late if seen.outcome == OK} == {good}
    assert all(seen.outcome == OK for seen in traffic.seen)
    ready = [set(worker.model_versions) for worker in snapshot.endpoints_of("worker")]
    assert all({"healthy@1", good} <= versions for versions in ready), "the old version is kept warm"
    assert actions[0].endswith("Apply")


async def _next(traffic: Traffic) -> None:
    answered = asyncio.Event()
    traffic.on_answer = lambda seen: answered.set()
    await answered.wait()


async def test_a_tampered_artifact_is_refused_by_every_worker_and_ends_its_rollout(mesh: Mesh, tmp_path: Path) -> None:
    async with site_of(mesh, tmp_path) as site:
        await baseline(site, tmp_path / "one", "tampered")
        folder = model_folder(tmp_path / "two", damage=True)
        weights = load_file(folder / "model.safetensors")
        first = sorted(weights)[0]
        weights[first] = weights[first] + 0.25  # a content that no other test pushes
        save_file(weights, folder / "model.safetensors")
        pushed = await site.push_folder(folder, "tampered", "2")
        version = (
            site.view.snapshot.model_versions.get(pushed)
            or (await site.view.wait_until(lambda snapshot: pushed in snapshot.model_versions)).model_versions[pushed]
        )
        digest = next(each.sha256 for each in version.artifacts if each.path == "model.safetensors")
        (blob,) = [path for path in (mesh.state / "blobs").rglob(digest) if path.is_file()]
        blob.chmod(0o644)
        with blob.open("r+b") as file:
            file.seek(-1, 2)
            last = file.read(1)
            file.seek(-1, 2)
            file.write(bytes([last[0] ^ 1]))
        started = await site.start("tampered", pushed, "--steps", "10", reason="an end-to-end test")
        ended = await site.ended("tampered", started, seconds=END)
        ready = [set(worker.model_versions) for worker in site.view.snapshot.endpoints_of("worker")]
    assert phase_of(ended) == pb.ROLLOUT_PHASE_ROLLED_BACK, ended
    assert "model.safetensors" in ended.state.reason or digest[:12] in ended.state.reason
    assert all(pushed not in versions for versions in ready)


def test_a_version_signed_by_a_stranger_is_refused(mesh: Mesh, tmp_path: Path) -> None:
    key = tmp_path / "stranger.key"
    mesh.weir("models", "keys", "new", str(key))
    done = mesh.weir(
        *("models", "push", str(model_folder(tmp_path / "model")), "--name", "strange", "--version", "1"),
        *("--tier", "fast", "--pool", "demo", "--key", str(key)),
        check=False,
    )
    assert done.returncode != 0
    assert "sign" in (done.stdout + done.stderr).lower()


async def test_a_bad_rollout_is_refused_with_the_reason(mesh: Mesh, tmp_path: Path) -> None:
    async with site_of(mesh, tmp_path) as site:
        await baseline(site, tmp_path / "one", "refused")
        with pytest.raises(RuntimeError, match="refused@9"):
            await site.start("refused", "refused@9", "--steps", "10", reason="an end-to-end test")
        await site.push_folder(model_folder(tmp_path / "two", damage=True), "refused", "2")
        with pytest.raises(RuntimeError, match="grow"):
            await site.start("refused", "refused@2", "--steps", "20,10", reason="an end-to-end test")
        await site.weir("rollout", "freeze", "--on", "--reason", "an end-to-end test")
        try:
            with pytest.raises(RuntimeError, match="frozen"):
                await site.start("refused", "refused@2", "--steps", "10", reason="an end-to-end test")
        finally:
            await site.weir("rollout", "freeze", "--off", "--reason", "an end-to-end test")


def test_the_registry_restored_from_a_file_equals_the_original(mesh: Mesh, tmp_path: Path) -> None:
    saved, again = tmp_path / "saved", tmp_path / "again"
    mesh.weir("export", str(saved))
    mesh.weir("set", "prices", "weir-fast", "input_microusd_per_million=9000000")
    mesh.weir("import", str(saved), "--replace", "--reason", "an end-to-end test")
    mesh.weir("export", str(again))
    assert saved.stat().st_mode & 0o077 == 0, "it holds the hashes of keys"

    def values(path: Path) -> list[object]:
        forms = [json.loads(line) for line in path.read_text().splitlines()[1:]]
        # What a mesh at work writes itself meanwhile.
        kept = [each for each in forms if each["kind"] not in ("Spend", "ErrorBudget")]
        for each in kept:
            each["metadata"].pop("revision")
            each.pop("status", None)
        return kept

    assert values(saved) == values(again)
    assert values(saved)
