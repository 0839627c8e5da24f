"""A mesh that comes up and does not answer: taken down when it is new, left to its operator when it answered before."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.mesh import up
from services.cli.mesh.lifecycle import StartError
from services.cli.mesh.plan import build
from services.cli.mesh.seed import Seeded
from services.cli.mesh.site import ROOT, load_profile, load_topology
from services.cli.mesh.sites import Laptop


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laptop:
    """A site whose processes start, and whose workers cannot load the model."""
    site = Laptop(root=ROOT, state=tmp_path, port_base=18000, interpreter="python", etcd="etcd", envoy="envoy")
    (tmp_path / "secrets").mkdir()
    plan = build(load_topology(ROOT), site, lambda **_: "", load_profile(ROOT, "demo"))
    status = {"state": "up", "processes": [{"name": "registry", "ready": True, "pid": 1}]}

    def refused(*_: object) -> None:
        raise StartError("weir-fast@1 cannot be loaded: no key that signed it is trusted (worker-a)")

    monkeypatch.setattr(up, "make_plan", lambda *_, **__: plan)
    monkeypatch.setattr(up.site, "prepare", lambda *_: None)
    monkeypatch.setattr(up, "_start", lambda *_: None)
    monkeypatch.setattr(up, "_authorize", lambda *_: None)
    monkeypatch.setattr(up.lifecycle, "watch", lambda _: iter([status]))
    monkeypatch.setattr(up, "_seed", lambda *_: Seeded({"acme": "weir_a_b"}, ["weir-fast"]))
    monkeypatch.setattr(up.report, "mesh_file", lambda *_: "{}")
    monkeypatch.setattr(up, "_wait_loaded", refused)
    return site


@pytest.fixture
def cleared(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    states: list[Path] = []
    monkeypatch.setattr(up.lifecycle, "clear", states.append)
    return states


def run(where: Laptop) -> None:
    up.up(where, up.Options(profile="demo"), say=lambda _: None, write=lambda _: None)


def test_a_new_one_is_taken_down(where: Laptop, cleared: list[Path]) -> None:
    with pytest.raises(StartError, match="cannot be loaded"):
        run(where)
    assert cleared == [where.state]


def test_one_that_answered_before_stays_up_for_its_operator(where: Laptop, cleared: list[Path]) -> None:
    (where.state / "last_up.json").write_text("{}")
    with pytest.raises(up.NotAnsweringError, match="no key that signed it is trusted"):
        run(where)
    assert cleared == []
    assert (where.state / "env").exists()
    assert (where.state / "mesh.json").exists()  # by which `weir get models` finds the registry
    with pytest.raises(up.NotAnsweringError):  # and nothing of this command holds the state directory
        run(where)
