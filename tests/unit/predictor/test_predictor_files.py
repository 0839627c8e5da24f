"""What a predictor loads is what the registry's record says, however the files change meanwhile."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.clock import SystemClock
from libs.versions.errors import LoadError as VersionError
from services.predictor.desired import VersionLoader
from services.predictor.executors import Executors, Settings
from services.predictor.files import Files
from services.predictor.port import LoadError
from tests.support.predictor import booster, trees

CLOCK = SystemClock()
OWN, OTHER = booster(seed=1), booster(seed=2)


def renamed_over(file: Path) -> None:
    (file.parent / "new").write_bytes(OTHER)
    os.replace(file.parent / "new", file)


def written_into(file: Path) -> None:
    file.write_bytes(OTHER)


def version(folder: Path, **files: bytes) -> pb.ModelVersion:
    """Put these into the folder, and record them."""
    made = pb.ModelVersion(name="m", version="1", prediction=trees(lane="inline"))
    for name, content in ({"model.ubj": OWN} | files).items():
        (folder / name).write_bytes(content)
        made.artifacts.add(path=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    return made


class Changed(Executors):
    """Somebody changes the file after a version's process has loaded it, and before this one does."""

    def __init__(self, change: Callable[[], None]) -> None:
        super().__init__(CLOCK, Settings(imports=()))
        self._change = change

    async def _prepared(self, *given: Any) -> Any:
        self._change()
        return await super()._prepared(*given)


@pytest.mark.parametrize("change", [renamed_over, written_into])
async def test_a_file_that_changes_after_it_was_checked_is_not_loaded(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    made, file = version(tmp_path), tmp_path / "model.ubj"
    for executors, before in ((Executors(CLOCK, Settings(imports=())), True), (Changed(lambda: change(file)), False)):
        file.write_bytes(OWN)
        if before:
            change(file)
        loader = VersionLoader(executors, {"m@1": made}.get, CLOCK)
        try:
            with pytest.raises(VersionError, match=r"model\.ubj.*(sha256|bytes)"):
                await loader.load("m@1", str(tmp_path))
            assert loader.ready == ()
        finally:
            await executors.close()


def test_only_what_is_listed_is_read_and_only_if_it_is_that(tmp_path: Path) -> None:
    made = version(tmp_path, **{"a.bin": b"a"})
    (tmp_path / "beside").write_bytes(b"b")
    os.mkfifo(tmp_path / "pipe")
    files = Files.of(made, tmp_path)
    assert files.read("model.ubj") == OWN
    assert files.beside("model.ubj", "a.bin") == b"a"
    for name in ("beside", "absent", "pipe", "", ".", "../x", "/etc/passwd", "inner/../model.ubj"):
        with pytest.raises(LoadError, match="there is no artifact"):
            files.read(name)
    (tmp_path / "a.bin").unlink()
    with pytest.raises(LoadError, match=r"there is no artifact 'a\.bin': No such file or directory"):
        files.read("a.bin")
    (tmp_path / "a.bin").write_bytes(b"A")
    with pytest.raises(LoadError, match=r"^a\.bin: its sha256 is not the manifest's$"):
        files.read("a.bin")
    (tmp_path / "a.bin").write_bytes(b"aa")
    with pytest.raises(LoadError, match=r"^a\.bin: has 2 bytes, the manifest says 1$"):
        files.read("a.bin")


def test_what_nobody_lists_lies_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "inner").mkdir()
    (folder / "own").write_bytes(b"own")
    (tmp_path / "other").write_bytes(b"other")
    (folder / "link").symlink_to(tmp_path / "other")
    files = Files(folder)
    assert files.read("own") == files.beside("inner/graph", "../own") == b"own"
    for name in ("link", "../other", str(tmp_path / "other"), "absent", "."):
        with pytest.raises(LoadError, match="there is no artifact"):
            files.read(name)
