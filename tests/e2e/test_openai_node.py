"""The official `openai` package for Node, unchanged, against the public edge: node/client.test.mjs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_operations import record_of
from tests.support.mesh import ROOT, Mesh, eventually

SOURCE = Path(__file__).parent / "node"
NODE, NPM = shutil.which("node"), shutil.which("npm")
OLDEST = 20
"""Of the releases of Node, the first that the package is made for."""
OFFLINE = re.compile(r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENOTCACHED")


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture(scope="module")
def package() -> Path:
    """The tests beside the installed package, which is kept between runs while the lock file is the same."""
    if NODE is None or NPM is None:
        pytest.skip("there is no node, or no npm, here: the client for Node is not tried")
    version = run(NODE, "--version").stdout
    if int(version.removeprefix("v").split(".")[0]) < OLDEST:
        pytest.skip(f"node {version.strip()} is older than {OLDEST}, which the openai package needs")
    folder = ROOT / "build" / "node"
    fresh = not (folder / "node_modules" / "openai").is_dir() or (
        (folder / "package-lock.json").read_bytes() != (SOURCE / "package-lock.json").read_bytes()
    )
    shutil.copytree(SOURCE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules"))
    if fresh:
        done = run(
            NPM, "ci", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"
        )
        if done.returncode != 0 and OFFLINE.search(done.stderr):
            pytest.skip("npm's registry cannot be reached from here: the client for Node is not tried")
        assert done.returncode == 0, done.stderr
    return folder


def test_e9_the_client_for_node_finds_what_it_expects(package: Path, mesh: Mesh) -> None:
    done = run(
        str(NODE),
        "--test",
        "--test-reporter=tap",
        str(package / "client.test.mjs"),
        NODE_EXTRA_CA_CERTS=mesh.env["WEIR_CA"],
        **{name: mesh.env[name] for name in ("WEIR_EDGE_TLS_URL", "WEIR_KEY_ACME", "WEIR_KEY_TINY")},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    broken = re.search(r"^# broken off: (\S+)$", done.stdout, re.MULTILINE)
    assert broken is not None, done.stdout
    record = eventually(lambda: record_of(mesh, broken[1]), what="the audit record of the stream that was broken off")
    assert record["outcome"] == "cancelled"
    assert 3 <= record["completion_tokens"] < 900
