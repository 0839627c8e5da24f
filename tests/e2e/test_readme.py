"""README's blocks, as printed, on a fresh mesh: every command of the ten minutes, every program."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mesh import ROOT, Mesh

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = {
    "weir complete": r"\w+ \w+ \w+",
    "curl -N": r'data: \{.*"delta"',
    "weir predict topics": r"topic",
    "weir status": r"gateway .*ready",
    "weir get models,aliases": r"models/weir-fast@1",
    "weir apply": r"(?s)would be created|created.*nothing was changed",
    "weir get all": r"kind: Tenant",
    "weir explain budget": r"monthly_microusd",
    "weir keys create": r"wk_|weir_",
    "weir whoami": r"owner",
    "weir models explain": r"acme",
    "weir safety try": r"email",
    "weir tenants explain": r"tiny",
    "weir models push": r"weir-fast@2",
    "weir rollout start": r"weir-fast@2",
    "weir rollout explain": r"at least 20 requests",
    "weir slo status": r"OBJECTIVE",
    "weir simulate": r"\d",
    "weir audit tail": r"acme",
    "weir usage show": r"acme",
    "weir xds status": r"envoy",
}
"""By the beginning of a command: what its output shows."""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with Mesh(tmp_path_factory.mktemp("readme")) as running:
        yield running


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(README) if found == language]


def commands() -> list[str]:
    """Those of the ten minutes, continued lines joined; without what only sets the shell up."""
    [block] = [text for text in blocks("") if "source .weir/env" in text]
    lines = block.replace("\\\n", " ").splitlines()
    return [line.partition("  # ")[0].strip() for line in lines if not line.startswith("source ")]


def run(fresh: Mesh, *command: str, seconds: float = 120) -> tuple[int, str]:
    done = subprocess.run(
        command,
        env={**fresh.environ, **fresh.env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_every_command_of_the_ten_minutes_does_what_it_says(fresh: Mesh, tmp_path: Path) -> None:
    found = commands()
    assert len(found) > 20
    unseen, faults = set(SHOWN), list[str]()
    for command in found:
        if command.startswith("make "):
            continue  # a mesh in its usual place
        code, out = run(fresh, "bash", "-euc", command.replace("/tmp/mine", str(tmp_path / "mine")))
        known = [each for each in SHOWN if re.search(rf"{re.escape(each)}(?![\w-])", command.replace(".venv/bin/", ""))]
        unseen.difference_update(known)
        if code or not all(re.search(SHOWN[beginning], out) for beginning in known):
            faults.append(f"{command} ({code}): {out}")
    assert not faults, "\n".join(faults)
    assert not unseen, "README says nothing of it any more"


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_every_program_prints_an_answer(fresh: Mesh, number: int) -> None:
    code, out = run(fresh, sys.executable, "-c", blocks("python")[number])
    assert code == 0, out
    assert len(out.split()) > 3, out
