"""What a push makes of where a folder lies and of what is registered."""

from __future__ import annotations

import json
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import Options
from libs.artifacts.making import _slug, complete, origin_of
from libs.resources.checks.faults import check_name, check_version

REVISION = "7ae557604adf67be50417f59c2c2f167def9a775"


@given(st.text())
def test_whatever_a_folder_is_called_makes_a_name_or_none(text: str) -> None:
    assert not (made := _slug(text)) or not list(check_name("", made))


@pytest.mark.parametrize("revision", [REVISION, "main", ""])
def test_a_download_to_a_folder_says_its_revision(tmp_path: Path, revision: str) -> None:
    folder = tmp_path / "Qwen2.5-0.5B-Instruct"
    written = folder / ".cache" / "huggingface" / "download" / "config.json.metadata"
    written.parent.mkdir(parents=True)
    written.write_text(f"{revision}\n0123abcd\n1700000000.0\n")
    made, lines = complete(folder, Options())
    assert (made.name, made.version) == ("qwen2.5-0.5b-instruct", REVISION[:12] if revision == REVISION else "")
    assert not made.version or not list(check_version("", made.version))
    assert (made.source_uri, made.revision) == ("", "")
    assert [name for name, _ in lines] == ["name", "version"][: 1 + bool(made.version)]


def test_a_snapshot_says_where_it_is_from(tmp_path: Path) -> None:
    folder = tmp_path / "models--Some-body--A--B" / "snapshots" / REVISION
    folder.mkdir(parents=True)
    found = origin_of(folder)
    assert (found.name, found.uri, found.revision) == ("A--B", "https://huggingface.co/Some-body/A--B", REVISION)
    assert origin_of(tmp_path).uri == ""
    made, _ = complete(folder, Options(source_uri="git://mine"))
    assert (made.source_uri, made.revision) == ("git://mine", "")


def test_what_is_said_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"name": "listed", "pool": "q", "context_length": 5}))
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 9}))
    known = [pb.ModelVersion(name="n", version="1", pool=pool, tier="fast") for pool in ("p", "q")]
    made, lines = complete(tmp_path, Options(version="1"), known, {"p"})
    assert (made.name, made.version, made.pool, made.tier) == ("", "1", "q", "fast")
    assert [name for name, _ in lines] == ["tier"]
    made, lines = complete(tmp_path, Options(version="1", pool="r"), known, {"p"})
    assert (made.pool, made.tier, lines) == ("r", "", [])


def test_a_further_version_is_where_the_newest_of_its_name_is(tmp_path: Path) -> None:
    known = [pb.ModelVersion(name="m", version="1", pool="p", tier="quality")]
    made, lines = complete(tmp_path, Options(name="m", version="2"), known, {"q"})
    assert (made.pool, lines) == ("p", [])


def test_of_several_none_is_taken(tmp_path: Path) -> None:
    known = [pb.ModelVersion(name="n", version=tier, pool="p", tier=tier) for tier in ("fast", "quality")]
    made, _ = complete(tmp_path, Options(name="m"), known, {"p", "q"})
    assert (made.pool, made.tier) == ("p", "")
    predicts = pb.ModelVersion(name="o", version="1", pool="predict")
    predicts.prediction.profile = "classical"
    assert complete(tmp_path, Options(name="m"), [predicts])[0].pool == ""
