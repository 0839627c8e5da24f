"""A newcomer's half hour with the registry: a directory in, changed, taken back, fought over, watched in faults."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
import threading
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import httpx2
import pytest
from aetcd import rpc

from libs.registry import EtcdStore, keys
from libs.registry.endpoints import HAS_LEADER
from tests.support.mesh import ROOT, WEIR, Mesh, eventually

FAST = ROOT / "models" / "demo" / "fast"
DIRECTORY = {
    "team.yaml": """
kind: Tenant
metadata: {name: reed, labels: {team: reed}}
spec: {display_name: Reed, plan: PLAN_PAID, plan_policy: patient, time_zone: Europe/Berlin}
---
kind: Limits
metadata: {name: reed/*, labels: {team: reed}}
spec: {requests_per_minute: 600, tokens_per_minute: 100000}
---
kind: Budget
metadata: {name: reed, labels: {team: reed}}
spec: {monthly_microusd: 50000000, daily_microusd: 5000000, alert_percent: [50, 100]}
""",
    "terms.yaml": """
kind: PlanPolicy
metadata: {name: patient}
spec: {weight: 2, kv_share: 0.5}
---
kind: Slo
metadata: {name: batch/fast}
spec: {e2e_p95: 90s, availability: 0.99}
---
kind: Price
metadata: {name: reed-model}
spec: {input_microusd_per_million: 100000, output_microusd_per_million: 300000}
---
kind: Alias
metadata: {name: reed-model}
spec:
  targets: [{model_version: weir-fast@1, weight: 100}]
""",
    "rollout.yaml": """
kind: Rollout
metadata: {name: reed-model}
spec:
  arms: [{name: canary, model_version: weir-fast@2}]
  steps: [{weight: 1000, min_duration: 600s}]
  reason: a newcomer tries it out
""",
}


@pytest.fixture(scope="module")
def drill(simulated: Mesh) -> Mesh:
    return simulated


@pytest.fixture(scope="module")
def folder(drill: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory, applied; `weir-fast@2` is there for its rollout."""
    made = tmp_path_factory.mktemp("reed")
    for name, text in DIRECTORY.items():
        (made / name).write_text(text)
    drill.weir("models", "push", str(FAST), "--name", "weir-fast", "--version", "2", "--reason", "for the rollout")
    assert "8 created" in apply(drill, made).stdout
    return made


def apply(mesh: Mesh, folder: Path, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return mesh.weir(
        "apply", "-f", str(folder), "--owner", "reed", "--prune", "--reason", "a test", *options, check=check
    )


def edit(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


def test_a_directory_is_the_source_of_truth(drill: Mesh, folder: Path, tmp_path: Path) -> None:
    again = apply(drill, folder).stdout
    assert "8 unchanged" in again, again
    assert drill.weir("diff", "-f", str(folder), "--owner", "reed", "--prune").returncode == 0
    assert drill.weir_json("get", "rollout", "reed-model")["spec"]["baseline"] == "weir-fast@1"

    edit(folder, "team.yaml", "requests_per_minute: 600", "requests_per_minute: 60")
    (folder / "terms.yaml").write_text(DIRECTORY["terms.yaml"].replace("batch/fast", "batch/quality"))
    differs = drill.weir("diff", "-f", str(folder), "--owner", "reed", "--prune", check=False)
    assert differs.returncode == 1
    assert re.search(r"spec\.requests_per_minute: 600 → 60", differs.stdout), differs.stdout
    told = apply(drill, folder, "--dry-run").stdout
    assert "1 created, 1 changed, 6 unchanged, 1 pruned" in told, told
    assert drill.weir_json("get", "limits", "reed/*")["spec"]["requests_per_minute"] == 600, "a dry run"
    before = drill.weir_json("get", "tenants")["revision"]
    assert "1 created, 1 changed, 6 unchanged, 1 pruned" in apply(drill, folder).stdout
    names = [each["metadata"]["name"] for each in drill.weir_json("get", "slos")["resources"]]
    assert "batch/quality" in names
    assert "batch/fast" not in names
    assert "generate/fast" in names, "what others own stays"

    # What the mesh holds is what a file says, byte for byte, also after it was applied.
    saved = drill.weir("get", "all", "-l", "team=reed", "-o", "yaml").stdout
    (tmp_path / "saved.yaml").write_text(saved)
    assert "3 unchanged" in drill.weir("apply", "-f", str(tmp_path / "saved.yaml")).stdout
    assert drill.weir("get", "all", "-l", "team=reed", "-o", "yaml").stdout == saved

    back = drill.weir("rollback", "limits", "reed/*", "--to", str(before), "--reason", "it was too little")
    assert "600" in back.stdout
    assert drill.weir_json("get", "limits", "reed/*")["spec"]["requests_per_minute"] == 600
    actors = drill.weir_json("history", "limits", "reed/*")["entries"]
    assert [each["action"] for each in actors[:2]] == ["registry.Rollback", "registry.Apply"]
    apply(drill, folder)


def test_of_two_operators_the_second_is_told_what_the_first_changed(drill: Mesh, folder: Path, tmp_path: Path) -> None:
    revision = drill.weir_json("get", "tenant", "reed")["metadata"]["revision"]
    drill.weir("set", "tenant", "reed", "weight=3", "--reason", "the first")
    stale = tmp_path / "stale.yaml"
    stale.write_text(
        f"kind: Tenant\nmetadata: {{name: reed, revision: {revision}}}\nspec: {{plan: PLAN_PAID, weight: 9}}\n"
    )
    refused = drill.weir("apply", "-f", str(stale), check=False)
    assert refused.returncode == 1
    assert "spec.weight" in refused.stderr
    assert "CONFLICT" in refused.stderr
    assert drill.weir_json("get", "tenant", "reed")["spec"]["weight"] == 3


def test_every_fault_of_a_directory_is_told_at_once(drill: Mesh, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "kind: Tenant\nmetadata: {name: Reed}\nspec: {plan: PLAN_PAID, weight: -1}\n---\n"
        "kind: Limits\nmetadata: {name: nobody/*}\nspec: {}\n"
    )
    refused = drill.weir("apply", "-f", str(bad), check=False)
    assert refused.returncode == 1
    for told in ("metadata.name", "spec.weight", "nobody"):
        assert told in refused.stderr, refused.stderr


def test_a_viewer_looks_and_does_not_touch(drill: Mesh, folder: Path) -> None:
    secret = drill.weir_json("keys", "create", "reed", "--scope", "models.read")["secret"]
    key_id = secret.split("_")[1]
    drill.weir("set", "role", f"key:{key_id}", "roles=[viewer]", "--create", "--reason", "looks on")
    edge = httpx2.Client(
        base_url=drill.env["WEIR_ADMIN_URL"],
        headers={"authorization": f"Bearer {secret}"},
        verify=ssl.create_default_context(cafile=drill.env["WEIR_CA"]),
        trust_env=False,
    )
    with edge:

        def listed() -> Any:
            answer = edge.get("/admin/v1/resources", params={"kinds": "Limits", "selector": "team=reed"})
            return answer if answer.status_code == 200 else None

        answer = eventually(listed, what="the role being known")
        assert [each["metadata"]["name"] for each in answer.json()["resources"]] == ["reed/*"]
        body = {"resources": [{"metadata": {"name": "reed/*"}, "limits": {"requests_per_minute": 9}}]}
        refused = edge.post("/admin/v1/resources:apply", json=body)
        assert refused.status_code == 403, refused.text
        assert "operator" in refused.text
        assert "hash" not in edge.get("/admin/v1/resources", params={"kinds": "ApiKey"}).text


def test_what_is_referred_to_is_not_deleted(drill: Mesh, folder: Path) -> None:
    refused = drill.weir("delete", "plan", "patient", check=False)
    assert refused.returncode == 1
    assert "tenants/reed" in refused.stderr
    assert "limits/reed/*" in drill.weir("delete", "tenant", "reed", check=False).stderr
    assert "tenants/reed" in drill.weir("describe", "plan", "patient").stdout


def test_a_watch_misses_nothing_through_a_restart_and_a_compaction(drill: Mesh, folder: Path) -> None:
    with Watching(drill, "limits") as watching:
        watching.until("reed/*")
        rpm = [71, 72, 73]
        drill.weir("set", "limits", "reed/*", f"requests_per_minute={rpm[0]}")
        watching.until("reed/*", requests_per_minute=rpm[0])
        pid = drill.kill("registry")
        drill.wait_back("registry", pid)
        drill.weir("set", "limits", "reed/*", f"requests_per_minute={rpm[1]}")
        watching.until("reed/*", requests_per_minute=rpm[1])
        compact(drill)
        pid = drill.kill("registry")
        drill.wait_back("registry", pid)
        drill.weir("set", "limits", "reed/*", f"requests_per_minute={rpm[2]}")
        watching.until("reed/*", requests_per_minute=rpm[2])


class Watching:
    """`weir watch` as a process."""

    def __init__(self, mesh: Mesh, kind: str) -> None:
        self._process = subprocess.Popen(
            [str(WEIR), "watch", kind, "-o", "json"],
            env=mesh.environ,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lines: Queue[dict[str, Any]] = Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._thread.join(20)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def until(self, name: str, **spec: Any) -> None:
        """Reads on until the resource is told with these fields."""
        seen = []
        while True:
            try:
                told = self._lines.get(timeout=60)["resource"]
            except Empty:
                raise AssertionError(f"{name} {spec} was not told; {seen} were") from None
            seen.append(told)
            have = told.get("spec", {})
            if told["metadata"]["name"] == name and all(have.get(field) == value for field, value in spec.items()):
                return

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))


def compact(mesh: Mesh) -> None:
    """Makes etcd forget its history up to now."""

    async def run() -> None:
        store = EtcdStore([mesh.file()["services"]["etcd"]["address"]], tls=mesh.etcd_root())
        try:
            revision = (await store.get_prefix(keys.FENCE)).revision
            request = rpc.CompactionRequest(revision=revision, physical=True)
            await store._endpoints.call(lambda stubs: stubs.kv.Compact(request, metadata=HAS_LEADER), repeatable=True)
        finally:
            await store.close()

    asyncio.run(run())
