"""Files that only this user reads, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.private_file import private_file


def test_it_is_there_once_it_is_whole_and_this_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    path.chmod(0o644)
    with private_file(path) as file:
        file.write(b"after")
        assert path.read_text() == "before"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("after", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def fail() -> None:
        with private_file(path) as file:
            file.write(b"half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert (path.read_text(), list(tmp_path.iterdir())) == ("before", [path])


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "file"
    other.write_text("somebody's")
    path.symlink_to(other)
    with private_file(path) as file:
        file.write(b"ours")
    assert (path.is_symlink(), path.read_text(), other.read_text()) == (False, "ours", "somebody's")
