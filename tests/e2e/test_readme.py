"""README's blocks, as printed, on a fresh mesh: every command of the ten minutes, every program. On the same mesh every
command of the blocks of docs/oncall.md, which only look; what it says to do is held against the parser by
tests/unit/docs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mesh import ROOT, Mesh
from tests.support.pages import blocks, lines

README = (ROOT / "README.md").read_text(encoding="utf-8")
ONCALL = (ROOT / "docs/oncall.md").read_text(encoding="utf-8")
SHOWN = {
    "weir complete": r"\w+ \w+ \w+",
    "curl -N": r'data: \{.*"delta"',
    "weir predict topics": r"topic",
    "weir status": r"gateway .*ready",
    "weir get models,aliases": r"models/weir-fast@1",
    "weir apply": r"(?s)would be created|created.*nothing was changed",
    "weir get all": r"kind: Tenant",
    "weir explain budget": r"monthly_microusd",
    "weir describe tenant": r"Referred to by: \S",
    "weir keys create": r"wk_|weir_",
    "weir whoami": r"owner",
    "weir operators list": r"(?s)WHO.*owner",
    "weir set limits": r"limits/tiny/\* changed",
    "weir models explain": r"acme",
    "weir safety try": r"email",
    "weir tenants explain": r"tiny",
    "weir models push": r"weir-fast@2",
    "weir rollout start": r"weir-fast@2",
    "weir rollout explain": r"at least 20 requests",
    "weir rollout watch": r"(?s)canary.*promoted",
    "weir slo status": r"OBJECTIVE",
    "weir history": r"(?s)REVISION.*rollouts/weir-fast",
    "weir simulate": r"(?s)simulation: overload.*TTFT",
    "weir audit tail": r"(?s)RECORD.*acme",
    "weir audit verify": r"the audit log holds",
    "weir usage show": r"acme",
    "weir usage reconcile": r"they agree",
    "weir trace": r"TENANT",
    "weir xds status": r"envoy",
}
"""By the beginning of a command: what its output shows."""
SEEN = {
    "weir status": r"gateway .*ready",
    "weir logs": r"\S",
    "weir top": r"PLANE",
    "weir diagnose": r"(?i)binds",
    "weir workers": r"worker-a",
    "weir slo status": r"OBJECTIVE",
    "weir trace": r"(?s)TENANT.*acme.*trace_id",
    "weir xds status": r"envoy",
    "weir history": r"REVISION",
    "weir certs show": r"gateway",
    "weir tenants explain": r"tiny",
    "weir get keys": r"acme",
    "weir models explain": r"acme",
    "weir get rollouts": r"\S",
    "weir get": r"weir-fast",
    "weir safety try": r"email",
    "weir safety list": r"@1",
    "weir audit tail": r"acme",
    "weir predictors": r"predictor",
    "weir usage show": r"acme",
    "weir usage reconcile": r"agree|differ",
    "weir audit verify": r"\d",
}
"""Likewise of docs/oncall.md; the first that fits a command."""
PATIENCE = 600.0
"""Seconds for a command, on a machine that is busy with other tests; a rollout's steps take forty."""
SAYS_NO = ("weir diagnose",)
"""What ends with 1 where it has found something, which a machine that is busy with other tests may well show."""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with Mesh(tmp_path_factory.mktemp("readme")) as running:
        yield running


def tour() -> list[str]:
    """Those of the ten minutes."""
    [block] = [text for text in blocks(README) if "source .weir/env" in text]
    return lines(block)


def run(fresh: Mesh, *command: str, seconds: float = PATIENCE) -> tuple[int, str]:
    """Its exit code and what it printed. Whatever it left running in the background ends with it."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            command, env={**fresh.environ, **fresh.env}, cwd=ROOT, stdout=out, stderr=out, start_new_session=True
        )
        try:
            code = process.wait(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        return code, out.read()


@pytest.mark.timeout(1600)
def test_every_command_of_the_ten_minutes_does_what_it_says(fresh: Mesh, tmp_path: Path) -> None:
    """The rollout goes to its end, with the requests of many users that README sends."""
    found = tour()
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
    alias = fresh.weir_json("get", "aliases", "weir-fast")
    assert [each["model_version"] for each in alias["spec"]["targets"]] == ["weir-fast@2"]


def test_on_call_every_symptom_has_commands() -> None:
    symptoms = re.split(r"^### ", ONCALL, flags=re.MULTILINE)[1:]
    assert [each.partition(".")[0] for each in symptoms] == [str(number) for number in range(1, 21)]
    for each in symptoms:
        assert lines(blocks(each)[0]), each
        assert re.search(r"^\*\*Means\.\*\* (?s:.*)^\*\*Do\.\*\* ", each, re.MULTILINE), each


@pytest.mark.timeout(600)
def test_on_call_every_command_that_looks_shows_what_it_should(fresh: Mesh) -> None:
    run(fresh, ".venv/bin/weir", "complete", "What is a weir?")  # something to look at
    found = dict.fromkeys(line for block in blocks(ONCALL) for line in lines(block))
    unseen, faults = set(SEEN), list[str]()
    for command in found:
        code, out = run(fresh, "bash", "-euc", command.replace("weir ", ".venv/bin/weir ", 1))
        shows = next((each for each in SEEN if re.match(rf"{re.escape(each)}(?![\w-])", command)), "")
        unseen.discard(shows)
        fine = code == 0 or (code == 1 and command.startswith(SAYS_NO))
        if not fine or not shows or not re.search(SEEN[shows], out):
            faults.append(f"{command} ({code}): {out}")
    assert not faults, "\n".join(faults)
    assert not unseen, "docs/oncall.md says nothing of it any more"


@pytest.mark.parametrize("number", range(len(blocks(README, "python"))))
def test_every_program_prints_an_answer(fresh: Mesh, number: int) -> None:
    code, out = run(fresh, sys.executable, "-c", blocks(README, "python")[number])
    assert code == 0, out
    assert len(out.split()) > 3, out
