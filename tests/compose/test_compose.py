"""`docker compose up` for real: what a newcomer with Docker alone gets, what survives, and what a container may."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import numpy as np
import pytest

from tests.compose.composed import Composed
from tests.support import engine

pytestmark = pytest.mark.timeout(26 * engine.MINUTES)

RIGHTS = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/1/status"))
def refused(path):
    try:
        open(path, "w").close()
        os.remove(path)
    except OSError as error:
        return os.strerror(error.errno)
print(json.dumps({
    "ids": sorted(set(status["Uid"].split() + status["Gid"].split() + status["Groups"].split())),
    "capabilities": {status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}.pop(),
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "seccomp": status["Seccomp"].strip(),
    "root": refused("/probe"),
    "programs": refused("/usr/local/bin/ready"),
    "config": refused("/etc/weir/probe"),
    "state": refused("/var/lib/weir/probe"),
}))
"""
KEYS = """
import json, os
found = []
for root, folders, files in os.walk("/"):
    folders[:] = [each for each in folders if root != "/" or each not in ("proc", "sys", "usr", "opt")]
    for name in files:
        path = os.path.join(root, name)
        try:
            if os.path.isfile(path) and b"PRIVATE KEY" in open(path, "rb").read():
                found.append(path)
        except OSError:
            pass
print(json.dumps(sorted(found)))
"""
MEMORY = """
import os
newer, older = "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes"
print(open(newer if os.path.exists(newer) else older).read())
"""
# Nobody but the job `files` sees this folder whole; the digest says whether any file in it changed.
DIGEST = """
import hashlib, os
digest = hashlib.sha256()
for root, folders, files in sorted(os.walk("/mesh")):
    for name in sorted(files):
        digest.update(os.path.join(root, name).encode() + b"=" + open(os.path.join(root, name), "rb").read())
print(digest.hexdigest())
"""


def digest(mesh: Composed) -> str:
    return mesh("run", "--rm", "--no-deps", "-T", "files", "python3", "-c", DIGEST).splitlines()[-1]


def test_the_engine_says_what_it_lacks() -> None:
    """Without root nothing is fetched or started, and whoever asked can tell that from a failure."""
    done = subprocess.run(
        ["/usr/bin/unshare", "--user", engine.ENGINE, "start"], capture_output=True, text=True, timeout=engine.MINUTES
    )
    assert done.returncode == engine.CANNOT
    assert "takes root" in done.stderr


def test_a_completion_is_streamed_through_the_published_port(mesh: Composed) -> None:
    answer = mesh.chat()
    assert len(answer["pieces"]) > 5
    assert answer["finish"] in ("stop", "length")


def golden(model: str) -> dict[str, Any]:
    """A case of a demo model."""
    return json.loads((engine.ROOT / "models" / "demo" / model / "golden.json").read_text())["cases"][0]


@pytest.mark.parametrize("model", ["cancer-gbdt", "cancer-linear", "digits-int8", "topics"])
def test_a_prediction_is_made_through_the_published_port(mesh: Composed, model: str) -> None:
    case = golden(model)
    answer = mesh.predict(model, case["inputs"])
    assert answer["parameters"]["weir_version"] == f"{model}@1"
    for output in case["outputs"]:
        given = answer["outputs"][output["name"]]
        if output["datatype"].startswith("FP"):
            wanted = np.ravel(output["data"]).tolist()
            assert given == pytest.approx(wanted, rel=case.get("rtol", 0), abs=case.get("atol", 0))
        else:
            assert given == np.ravel(output["data"]).tolist()


def test_a_model_that_predictors_have_no_library_for_says_so_and_another_stands_in(mesh: Composed) -> None:
    answer = mesh.predict("digits-torch", golden("digits-torch")["inputs"], degradable=True)
    assert answer["parameters"]["weir_degraded"] == "smaller_version"
    assert answer["outputs"]["digit"] == golden("digits-torch")["outputs"][0]["data"]
    told = mesh("run", "--rm", "-T", "weir", "predictors", "--output=json")
    rows = json.loads(told[told.index("{") :])["predictors"]
    states = {(row["predictor"], row["version"]): row for row in rows}
    for predictor in ("predictor-a", "predictor-b"):
        row = states[predictor, "digits-torch@1"]
        assert row["state"] == "failed"
        assert "this predictor has no torch" in row["detail"]
        assert states[predictor, "digits-int8@1"]["state"] == "ready"


@pytest.mark.parametrize(
    ("image", "most"), [("control", 350e6), ("records", 400e6), ("predictor", 600e6), ("engine", 1.5e9)]
)
def test_an_image_is_small(images: None, image: str, most: float) -> None:
    """In bytes, as `docker images` counts: of torch, a gigabyte, a predictor of trees would load nothing, and of what
    speaks to databases only the store of records does."""
    size = int(engine.run("docker", "image", "inspect", "--format", "{{.Size}}", f"weir/{image}:dev"))
    print({image: size})  # noqa: T201 - figures
    assert size <= most


def test_a_predictor_needs_a_part_of_its_memory(mesh: Composed) -> None:
    used = mesh.inside("predictor-a", MEMORY)
    print({"memory": used})  # noqa: T201 - figures
    assert used <= mesh.container("predictor-a")["HostConfig"]["Memory"] / 2


def test_operators_have_their_command_line(mesh: Composed) -> None:
    told = mesh("run", "--rm", "-T", "weir", "workers")
    assert "worker-a" in told
    assert "worker-b" in told


def test_a_container_may_do_next_to_nothing(mesh: Composed) -> None:
    for service in mesh.containers():
        assert mesh.inside(service, RIGHTS) == {
            "ids": ["10001"],
            "capabilities": "0" * 16,
            "no_new_privileges": "1",
            "seccomp": "2",
            "root": "Read-only file system",
            "programs": "Read-only file system",
            "config": "Read-only file system",
            "state": None,
        }, service


def test_a_container_holds_its_own_key_and_no_other(mesh: Composed) -> None:
    own = ["/etc/weir/tls/tls.key"]
    # The edge shows another certificate to the public; the audit log's checkpoints are signed with a key that it made.
    more = {"envoy": ["/etc/weir/edge/tls.key"], "audit": ["/var/lib/weir/data/keys/checkpoint.key"]}
    for service in mesh.containers():
        assert mesh.inside(service, KEYS) == sorted(own + more.get(service, [])), service
    seen = {service: mesh("exec", "-T", service, "cat", *own) for service in mesh.containers()}
    assert len(set(seen.values())) == len(seen)


def test_only_the_edge_is_published_and_only_on_loopback(mesh: Composed) -> None:
    published = {
        (service, bound["HostIp"])
        for service, each in mesh.containers().items()
        for bindings in each["NetworkSettings"]["Ports"].values()
        for bound in bindings or ()
    }
    assert published == {("envoy", "127.0.0.1")}


def test_memory_and_processes_are_limited(mesh: Composed) -> None:
    for service, each in mesh.containers().items():
        assert each["HostConfig"]["Memory"] > 0, service
        assert each["HostConfig"]["PidsLimit"] > 0, service


def test_a_killed_worker_and_a_killed_gateway_come_back_with_the_same_certificates(mesh: Composed) -> None:
    before = digest(mesh)
    mesh.kill("worker-a")
    assert mesh.chat()["pieces"]
    mesh.kill("gateway")
    assert mesh.chat()["pieces"]
    assert digest(mesh) == before


def test_up_again_changes_nothing(mesh: Composed) -> None:
    before, containers, keys = digest(mesh), mesh.containers(), mesh.keys
    mesh.up()
    assert digest(mesh) == before
    assert mesh.keys == keys
    assert {name: each["State"]["StartedAt"] for name, each in mesh.containers().items()} == {
        name: each["State"]["StartedAt"] for name, each in containers.items()
    }
    assert mesh.chat()["pieces"]


def test_with_replicas_a_killed_gateway_is_not_noticed(mesh: Composed) -> None:
    mesh.up("replicas")
    containers = mesh.containers()
    assert {"gateway-2", "router-2", "safety-2", "edge-auth-2", "ratelimit-2", "admission-2"} <= set(containers)
    assert containers["gateway-2"]["Config"]["Labels"]["weir.zone"] == "zone-b"
    mesh("kill", "gateway")
    assert mesh.chat()["pieces"]
    mesh("--profile", "replicas", "stop", *(name for name in containers if name.endswith("-2")))
    mesh.up()
