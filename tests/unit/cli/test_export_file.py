"""The file of an export: read back as it was written, private, refused when damaged."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.changes.exports import ExportDigest
from services.cli import exports
from services.cli.exports import ExportFileError


def parts_of(
    values: list[tuple[str, bytes]], *, per_part: int = 2, digest: str | None = None
) -> list[pb.ExportResponse]:
    found = ExportDigest()
    for name, value in values:
        found.add(name, value)
    made = [pb.ExportedValue(resource=name, value=value) for name, value in values]
    slices = [made[start : start + per_part] for start in range(0, len(made), per_part)]
    return [
        *(pb.ExportResponse(values=each, revision=7) for each in slices),
        pb.ExportResponse(revision=7, digest=found.hex if digest is None else digest),
    ]


VALUES = [("aliases/a", b'{"name": "a"}'), ("keys/k", b'{"hash": "aa=="}'), ("tenants/t", '{"id": "ä"}'.encode())]


def test_it_is_private_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "registry.jsonl"
    path.write_text("what was there")
    count, revision, digest = exports.write(path, parts_of(VALUES))
    assert (count, revision) == (3, 7)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    *parts, last = exports.read(path)
    assert [(each.resource, each.value) for part in parts for each in part.values] == VALUES
    assert (last.digest, list(last.values)) == (digest, [])
    assert path.read_text(encoding="utf-8").count("\n") == 5


def test_nobody_can_lay_a_file_in_wait(tmp_path: Path) -> None:
    path, others = tmp_path / "registry.jsonl", tmp_path / "others"
    others.write_text("theirs")
    (tmp_path / f"{path.name}.{os.getpid()}.partial").symlink_to(others)
    with pytest.raises(FileExistsError):
        exports.write(path, parts_of(VALUES))
    assert others.read_text() == "theirs"
    exports.write(path, parts_of(VALUES))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=20), max_size=5))
def test_whatever_is_stored_comes_back(tmp_path_factory: pytest.TempPathFactory, stored: dict[str, str]) -> None:
    path = tmp_path_factory.mktemp("export") / "file"
    values = sorted((name, text.encode()) for name, text in stored.items())
    exports.write(path, parts_of(values, per_part=1))
    assert [(each.resource, each.value) for part in exports.read(path) for each in part.values] == values


def test_large_ones_are_sent_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    values = [(f"tenants/t{number:04}", b"x" * 10_000) for number in range(120)]
    exports.write(path, parts_of(values))
    parts = exports.read(path)
    assert len(parts) == 4
    assert all(part.ByteSize() < 1_000_000 for part in parts)
    assert sum(len(part.values) for part in parts) == 120


@pytest.mark.parametrize("parts", [parts_of(VALUES)[:-1], parts_of(VALUES, digest="0" * 64), []])
def test_half_an_export_leaves_no_file(tmp_path: Path, parts: list[pb.ExportResponse]) -> None:
    with pytest.raises(ExportFileError):
        exports.write(tmp_path / "file", parts)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_text_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ExportFileError, match="tenants/t"):
        exports.write(tmp_path / "file", parts_of([("tenants/t", b"\xff")]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: lines[1:], "no weir-registry-export"),
        (lambda lines: [], "no weir-registry-export"),
        (lambda lines: lines[:-1], "breaks off"),
        (lambda lines: lines[:2] + lines[3:], "is damaged"),
        (lambda lines: [*lines, lines[1]], "goes on"),
        (lambda lines: [*lines[:2], "{", *lines[2:]], "no JSON"),
        (lambda lines: [*lines[:2], "[]", *lines[2:]], "no object"),
        (lambda lines: [*lines[:2], "{}", *lines[2:]], "no resource"),
        (lambda lines: [line.replace("aa==", "ab==") for line in lines], "is damaged"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[list[str]], list[str]], message: str) -> None:
    path = tmp_path / "file"
    exports.write(path, parts_of(VALUES))
    path.write_text("".join(line + "\n" for line in damage(path.read_text(encoding="utf-8").splitlines())), "utf-8")
    with pytest.raises(ExportFileError, match=message):
        exports.read(path)
