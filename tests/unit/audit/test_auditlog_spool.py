"""The spool: order, bounds, crashes, damage."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.auditlog import Spool
from libs.auditlog import spool as module


def drain(spool: Spool, batch: int = 3) -> list[bytes]:
    found: list[bytes] = []
    while spool.pending:
        records, lines = spool.peek(batch)
        found += records
        spool.acknowledge(lines, damaged=lines - len(records))
    return found


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(st.lists(st.binary(max_size=30), max_size=5), max_size=6), batch=st.integers(1, 7))
def test_records_come_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[bytes]], batch: int
) -> None:
    root = tmp_path_factory.mktemp("spool")
    spool = Spool(root, 10**6)
    for at, group in enumerate(groups):
        assert spool.append_all(group) == len(group)
        if at == 2:
            spool.close()
            spool = Spool(root, 10**6)
    wanted = [record for group in groups for record in group]
    assert spool.pending == len(wanted)
    assert drain(spool, batch) == wanted
    assert (spool.pending, spool.bytes) == (0, 0)
    assert list(root.glob("*.spool")) == []
    spool.close()


def test_it_is_bounded(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 100)
    assert spool.append_all([b"x" * 20] * 5) == 2
    assert spool.append(b"x" * 40) is False
    while spool.append(b""):
        pass
    assert spool.bytes <= 100
    drain(spool)
    assert spool.append(b"again")
    spool.close()


def test_files_are_short_and_removed_when_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FILE_BYTES", 100)
    spool = Spool(tmp_path, 10**6)
    for number in range(20):
        spool.append(b"record %d" % number)
    assert len(list(tmp_path.glob("*.spool"))) > 3
    records, lines = spool.peek(2)
    spool.acknowledge(lines)
    spool.append(b"late")
    # A crash now: the oldest file is replayed from its beginning, nothing is missing.
    again = Spool(tmp_path, 10**6)
    assert drain(again) == [b"record %d" % number for number in range(20)] + [b"late"]
    assert records == [b"record 0", b"record 1"]
    spool.close()


def test_damaged_and_torn_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10**6)
    spool.append_all([b"one", b"two", b"three"])
    spool.close()
    [path] = tmp_path.glob("*.spool")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b" ", b" A", 1) + lines[2] + lines[0][:7])
    again = Spool(tmp_path, 10**6)
    assert again.pending == 4
    again.append(b"four")
    assert drain(again) == [b"one", b"three", b"four"]
    assert again.damaged == 2
    again.close()


def test_an_empty_spool_has_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "none", 100)
    assert spool.peek(5) == ([], 0)
    spool.acknowledge(0)
    assert not spool.full
    assert not (tmp_path / "none").exists()


def test_f8_the_name_of_a_file_is_on_the_disk_before_what_it_holds_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data" / "spool"
    synced: list[tuple[Path, bool]] = []

    def sync(path: Path) -> None:
        synced.append((path, (root / "000000000001.spool").exists()))

    monkeypatch.setattr(module, "sync_directory", sync)
    spool = Spool(root, 10**6)
    assert spool.append(b"one")
    assert synced == [(path, True) for path in (root, tmp_path / "data", tmp_path)]
    assert spool.append(b"two")
    assert len(synced) == 3
    spool.close()


def test_f8_a_name_that_cannot_be_brought_to_the_disk_is_no_place_for_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError("the disk is gone")

    spool = Spool(tmp_path, 10**6)
    with monkeypatch.context() as patched:
        patched.setattr(module, "sync_directory", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="gone"):
                spool.append(b"one")
        assert list(tmp_path.iterdir()) == []
    assert spool.append(b"one")
    assert drain(spool) == [b"one"]
    spool.close()
