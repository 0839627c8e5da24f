"""`weir backup` and `weir restore` of an audit log that a folder holds; etcd's part is tried with a real etcd."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from importlib.metadata import version
from pathlib import Path

import pytest

from libs.auditlog import Incoming, load_or_create_signer
from libs.auditlog.tombstones import body_of, signed
from libs.backup.auditlog import check
from libs.sealing.scope import Scope
from libs.sealing.vault import kept as in_vault
from tests.support.auditfolder import append, audit_files
from tests.support.operator import Operator
from tests.support.sealed import key_for, opened, wanted


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    """A log of five records that nobody writes."""
    files = audit_files(tmp_path / "audit")
    append(files, 5)
    files.close()
    return tmp_path / "audit"


async def test_a_log_comes_back_as_it_was(tmp_path: Path, audit: Path) -> None:
    weir, store, back = Operator(tmp_path), tmp_path / "store", tmp_path / "back"
    saved = (await weir("backup", store, "--audit", audit, "--json")).json()
    assert (saved["audit_records"], store.stat().st_mode & 0o777) == (5, 0o700)
    tried = await weir("restore", store, "--audit", back, "--dry-run")
    assert (tried.code, back.exists()) == (0, False), tried.err
    done = await weir("restore", store, "--audit", back)
    assert (done.code, "checkpoint.key is missing" in done.err, "kek is missing" in done.err) == (0, True, True)
    check(back, 5)
    assert sorted(path.name for path in back.iterdir()) == ["checkpoints", "keys", "log"]
    again = await weir("restore", store, "--audit", back)
    assert (again.code, "not empty" in again.err) == (1, True)
    by_id = (await weir("restore", store, "--backup", saved["id"], "--audit", tmp_path / "third", "--json")).json()
    assert by_id == saved
    assert version("weir") in (await weir("version")).out


async def test_sums_of_usage_come_back_where_no_store_of_records_is(tmp_path: Path, audit: Path) -> None:
    weir, store, own = Operator(tmp_path), tmp_path / "store", tmp_path / "own"
    own.mkdir()
    with contextlib.closing(sqlite3.connect(own / "records.sqlite")) as made, made:
        made.execute("CREATE TABLE requests (id)")
        made.execute("CREATE TABLE usage (tenant)")
        for table in ("requests", "usage"):
            made.execute(f"INSERT INTO {table} VALUES ('acme')")  # noqa: S608
    assert (await weir("backup", store, "--audit", audit, "--records", own)).code == 0
    back = tmp_path / "back"
    done = await weir("restore", store, "--records", back)
    assert (done.code, [path.name for path in back.iterdir()]) == (0, ["records.sqlite"]), done.err
    with contextlib.closing(sqlite3.connect(back / "records.sqlite")) as found:
        assert found.execute("SELECT * FROM usage").fetchall() == [("acme",)]
        assert found.execute("SELECT * FROM requests").fetchall() == []
    assert (await weir("restore", store, "--audit", tmp_path / "log")).code == 0
    assert not (tmp_path / "log" / "records.sums").exists()


async def test_sums_of_usage_may_be_saved_alone_as_a_cluster_does(tmp_path: Path, audit: Path) -> None:
    weir, store, own = Operator(tmp_path), tmp_path / "store", tmp_path / "own"
    own.mkdir()
    none = await weir("backup", store, "--records", own)
    assert (none.code, "no records.sqlite" in none.err) == (1, True), none.err
    with contextlib.closing(sqlite3.connect(own / "records.sqlite")) as made, made:
        made.execute("CREATE TABLE usage (tenant)")
    saved = await weir("backup", store, "--records", own)
    assert (saved.code, "answers to idempotency keys" in saved.out) == (0, True), saved.err
    assert (await weir("restore", store, "--records", tmp_path / "back")).code == 0
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["records.sqlite"]
    assert (await weir("backup", store, "--audit", audit)).code == 0
    without = await weir("restore", store, "--records", tmp_path / "third")
    assert (without.code, "holds no sums of records" in without.err) == (1, True), without.err


async def test_what_was_erased_since_a_backup_does_not_come_back_with_it(tmp_path: Path) -> None:
    weir, store, log = Operator(tmp_path), tmp_path / "store", tmp_path / "log"
    files, (vault, ring) = audit_files(log), opened(log)
    kept = [key_for(ring, wanted(tenant)).id for tenant in ("acme", "globex")]
    append(files, 2)
    before = (await weir("backup", store, "--audit", log, "--json")).json()["id"]
    scope = Scope(upto=vault.serial, tenant="acme")
    unsigned = body_of(
        scope,
        record_id="t",
        source="audit/a",
        time="2026-11-23T08:00:00Z",
        actor="me",
        reason="mistake",
        reference="",
        destroyed=1,
    )
    grave = signed(unsigned, load_or_create_signer(log / "keys"))
    [stored] = files.commit([Incoming("t", grave)])
    assert stored is not None
    assert vault.bury(stored.sequence, grave, scope) == 1
    vault.close()
    files.close()
    await weir("backup", store, "--audit", log)
    # The older backup, in which acme's key is: the newer one says that it was erased.
    old = await weir("restore", store, "--backup", before, "--audit", tmp_path / "old")
    assert old.code == 0, old.err
    names, graves = in_vault(tmp_path / "old" / "sealing" / "keys.db")
    assert (names, graves) == ({kept[1]}, [(stored.sequence, grave)])
    # Keys that are there are never older than a backup's, and stay.
    shutil.copytree(log / "sealing", tmp_path / "third" / "sealing")
    assert (await weir("restore", store, "--audit", tmp_path / "third")).code == 0
    assert in_vault(tmp_path / "third" / "sealing" / "keys.db")[0] == {kept[1]}
    # They may lie elsewhere.
    apart = tmp_path / "apart"
    await weir("restore", store, "--audit", tmp_path / "fourth", "--audit-keys", apart)
    assert in_vault(apart / "keys.db")[0] == {kept[1]}
    assert not (tmp_path / "fourth" / "sealing").exists()


async def test_what_is_damaged_or_not_there_is_told(tmp_path: Path, audit: Path) -> None:
    weir, store = Operator(tmp_path), tmp_path / "store"
    empty = await weir("restore", store, "--audit", tmp_path / "back")
    assert (empty.code, "no backup" in empty.err) == (1, True)
    saved = (await weir("backup", store, "--audit", audit, "--json")).json()
    lacking = await weir("restore", store, "--snapshot", tmp_path / "etcd.snapshot")
    assert (lacking.code, "holds no snapshot of etcd" in lacking.err) == (1, True)
    for path in (store / "sha256").glob("*/*"):
        if path.name != saved["id"]:
            path.chmod(0o600)
            path.write_bytes(path.read_bytes()[:-1] + b"\0")
    damaged = await weir("restore", store, "--audit", tmp_path / "back")
    assert (damaged.code, damaged.err.count("\n"), "digest" in damaged.err) == (1, 1, True)
    assert not list((tmp_path / "back").iterdir()), "nothing is left of it"
    shutil.rmtree(audit / "checkpoints")
    nothing = await weir("backup", store, "--audit", audit)
    assert (nothing.code, "no checkpoint" in nothing.err) == (1, True)


async def test_a_folder_that_others_enter_is_refused(tmp_path: Path, audit: Path) -> None:
    weir, store = Operator(tmp_path), tmp_path / "store"
    store.mkdir(mode=0o755)
    refused = await weir("backup", store, "--audit", audit)
    assert (refused.code, "chmod 700" in refused.err) == (1, True)
    assert not list(store.iterdir())


@pytest.mark.parametrize("words", [("--etcd", "127.0.0.1:1"), ("--etcd", "127.0.0.1:1", "--ca", "ca.pem")])
async def test_etcd_needs_its_root_certificate(tmp_path: Path, words: tuple[str, ...]) -> None:
    refused = await Operator(tmp_path)("backup", tmp_path / "store", *words)
    assert (refused.code, "--cert and --key" in refused.err) == (2, True)


async def test_without_a_mesh_here_there_is_nothing_to_save(tmp_path: Path) -> None:
    nowhere = await Operator(tmp_path)("backup", tmp_path / "store")
    assert (nowhere.code, "weir up" in nowhere.err) == (1, True)


async def test_the_store_of_models_is_refused(tmp_path: Path) -> None:
    weir = Operator(tmp_path)
    weir.describe(blobs=(tmp_path / "blobs").as_uri())
    refused = await weir("backup", tmp_path / "blobs")
    assert (refused.code, "models gc" in refused.err) == (2, True)
