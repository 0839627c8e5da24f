"""Data keys: whose they are, when there are new ones, what destroys them, and that no nonce comes twice."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.sealing.keks import FileKeks, KekDamagedError
from libs.sealing.keyring import KeyGoneError, Keyring, SealingError, SealingKey
from libs.sealing.scope import KeyName, Scope, key_id, sealing_month
from libs.sealing.vault import NAME, Vault, VaultError, saved
from tests.support.sealed import DAY, NOVEMBER, Clock, FailingKeks, key_for, opened, wanted

EVER = 2**39
MONTHS = st.dates().map(lambda day: day.strftime("%Y-%m"))


def sealed_by(ring: Keyring, key: SealingKey, words: bytes = b"words") -> tuple[bytes, bytes]:
    """(nonce as told, sealed in base64)"""
    import base64

    nonce, told = ring.nonce()
    return told, base64.b64encode(key.aead.encrypt(nonce, words, b"here"))


def test_keys_are_of_tenant_subject_class_and_month_and_outlive_a_restart(tmp_path: Path) -> None:
    vault, ring = opened(tmp_path)
    wants = [wanted(), wanted("globex"), wanted(subject="joe"), wanted(data_class="safety"), wanted()]
    keys = [key_for(ring, each).id for each in wants]
    assert len(set(keys)) == 4
    assert keys[0] == keys[4]
    told, sealed = sealed_by(ring, key_for(ring, wanted(subject="joe")))
    vault.close()
    vault, ring = opened(tmp_path)
    assert [key_for(ring, each).id for each in wants] == keys
    assert ring.open(keys[2], told, sealed, b"here") == b"words"
    with pytest.raises(SealingError, match="place and header"):
        ring.open(keys[2], told, sealed, b"elsewhere")
    with pytest.raises(SealingError, match="place and header"):
        ring.open(keys[1], told, sealed, b"here")
    # A subject's name is nowhere in the vault.
    assert b"joe" not in saved(tmp_path / "sealing" / NAME)
    vault.close()


def test_no_nonce_comes_twice_and_every_process_seals_with_a_key_of_its_own(tmp_path: Path) -> None:
    seen = set()
    for _ in range(3):
        vault, ring = opened(tmp_path)
        key = key_for(ring, wanted())
        for _ in range(100):
            seen.add(ring.nonce()[1])
        # The counter begins anew at each start: the same words under the same nonce must differ all the same.
        seen.add(key.aead.encrypt(bytes(12), b"words", None))
        vault.close()
    assert len(seen) == 303


@pytest.mark.parametrize("far", [400 * DAY, -400 * DAY])
def test_one_clock_that_jumps_opens_no_month(tmp_path: Path, far: float) -> None:
    clock = Clock()
    vault, ring = opened(tmp_path, clock)
    assert key_for(ring, wanted()).month == "2026-11"
    clock.now += far
    assert key_for(ring, wanted()).month == "2026-11"
    clock.now = NOVEMBER
    for told in ("2031-01", "1970-01"):
        assert key_for(ring, wanted(told=told)).month == "2026-11"
    clock.now = NOVEMBER + 8 * DAY
    assert key_for(ring, wanted(told="2026-12")).month == "2026-12"
    # A record of the old month that comes late, and a clock that steps back over the edge.
    clock.now = NOVEMBER
    assert key_for(ring, wanted()).month == "2026-12"
    vault.close()


@given(newest=MONTHS, own=MONTHS, told=MONTHS)
def test_months_only_go_on_and_only_as_far_as_two_clocks_say(newest: str, own: str, told: str) -> None:
    month = sealing_month(newest, own, told)
    assert month >= newest
    assert month == newest or (month <= own and month <= told)


def test_an_erased_key_comes_back_from_no_cache_and_a_new_one_seals_what_follows(tmp_path: Path) -> None:
    vault, ring = opened(tmp_path)
    old = key_for(ring, wanted())
    joe = key_for(ring, wanted(subject="joe"))
    told, sealed = sealed_by(ring, old)
    other = key_for(ring, wanted("globex"))
    scope = Scope(upto=vault.serial, tenant="acme")
    doomed = [key.id for key in vault.covered(scope)]
    assert sorted(doomed) == sorted([old.id, joe.id])
    # The disk is full between the tombstone and the keys: what is forgotten is not used, destroyed or not.
    ring.forget(doomed)
    with pytest.raises(KeyGoneError):
        ring.open(old.id, told, sealed, b"here")
    between = key_for(ring, wanted())
    assert between.id not in doomed
    assert key_for(ring, wanted("globex")).id == other.id
    assert vault.bury(7, b"{}", scope) == 2
    assert vault.bury(7, b"{}", scope) == 0, "twice is as once"
    new = key_for(ring, wanted())
    assert new == between, "it came after the tombstone"
    # The next erasure of the same tenant covers it, and the former tombstone does not.
    name = KeyName(new.id, "acme", "request", "2026-11")
    assert not scope.covers(name)
    assert replace(scope, upto=vault.serial).covers(name)
    vault.close()
    vault, ring = opened(tmp_path)
    with pytest.raises(KeyGoneError):
        ring.open(old.id, told, sealed, b"here")
    assert vault.tombstones() == [(7, b"{}")]
    assert old.id.encode() not in (tmp_path / "sealing" / NAME).read_bytes(), "what is deleted is overwritten"
    vault.close()


def test_keys_made_by_a_vault_that_was_put_back_are_not_those_that_were_erased(tmp_path: Path) -> None:
    vault, ring = opened(tmp_path)
    old = key_for(ring, wanted())
    scope = Scope(upto=vault.serial + 50, tenant="acme")
    ring.forget([old.id])
    assert vault.bury(9, b"{}", scope) == 1
    assert int(key_for(ring, wanted()).id[:10], 16) > scope.upto
    assert old.id not in vault.names()
    vault.close()


def test_a_scope_that_says_nothing_covers_nothing() -> None:
    key = KeyName(key_id(3, b"abc"), "acme", "request", "2026-11")
    assert not Scope(upto=EVER).covers(key)
    assert not Scope(upto=EVER, data_class="request").covers(key)
    assert not Scope(upto=EVER, tenant="acme", subject="d1").covers(key), "a subject without keys is not its tenant"
    assert Scope(upto=EVER, data_class="request", before="2026-12").covers(key)
    assert not Scope(upto=EVER, data_class="request", before="2026-11").covers(key)
    assert not Scope(upto=2, tenant="acme").covers(key)


def test_a_key_encryption_key_that_is_away_stops_those_who_need_it_and_is_not_asked_all_the_time(
    tmp_path: Path,
) -> None:
    vault, clock = Vault(tmp_path / "sealing"), Clock()
    keks = FailingKeks(FileKeks(tmp_path / "kek", create=True))
    ring = Keyring(vault, keks, now=clock, monotonic=clock, pause=5)
    held = key_for(ring, wanted())
    keks.away = True
    found = ring.keys_for([wanted("globex"), wanted()])
    assert isinstance(found[0], SealingError)
    assert found[1] == held, "who has a key goes on"
    calls = keks.calls
    ring.keys_for([wanted("initech")])
    assert keks.calls == calls
    keks.away = False
    clock.now += 6
    key_for(ring, wanted("globex"))
    vault.close()


def test_one_tenants_damaged_key_is_the_others_no_matter(tmp_path: Path) -> None:
    vault, ring = opened(tmp_path)
    key_for(ring, wanted())
    vault.close()
    with sqlite3.connect(tmp_path / "sealing" / NAME) as database:
        database.execute("UPDATE keys SET wrapped = zeroblob(60)")
    vault, ring = opened(tmp_path)
    damaged = vault.names()
    new, good = key_for(ring, wanted()), key_for(ring, wanted("globex"))
    assert not {new.id, good.id} & damaged, "records do not wait for a key that is lost"
    with pytest.raises(SealingError, match="changed"):
        ring.open(next(iter(damaged)), *sealed_by(ring, new), b"here")
    # And neither does a rotation.
    assert ring.rotate()[1] == 2
    assert damaged < vault.names()
    vault.close()


def test_a_wrapped_key_moved_to_another_tenant_does_not_open(tmp_path: Path) -> None:
    vault, ring = opened(tmp_path)
    acme, globex = key_for(ring, wanted()).id, key_for(ring, wanted("globex")).id
    vault.close()
    with sqlite3.connect(tmp_path / "sealing" / NAME) as database:
        [[wrapped]] = database.execute("SELECT wrapped FROM keys WHERE id = ?", (acme,)).fetchall()
        database.execute("UPDATE keys SET wrapped = ? WHERE id = ?", (wrapped, globex))
    vault, ring = opened(tmp_path)
    with pytest.raises(SealingError, match="changed"):
        ring.open(globex, *sealed_by(ring, key_for(ring, wanted())), b"here")
    assert key_for(ring, wanted("globex")).id != globex
    vault.close()


def test_a_second_process_and_a_damaged_vault_are_refused(tmp_path: Path) -> None:
    vault, _ = opened(tmp_path)
    with pytest.raises(VaultError, match="another process"):
        Vault(tmp_path / "sealing")
    vault.close()
    (tmp_path / "sealing" / NAME).write_bytes(b"no database at all, but long enough to be looked at" * 20)
    with pytest.raises(VaultError):
        Vault(tmp_path / "sealing")


def test_a_full_disk_makes_no_key_and_loses_none(tmp_path: Path) -> None:
    vault, ring = opened(tmp_path)
    kept = key_for(ring, wanted()).id
    [[pages]] = vault._database.execute("PRAGMA page_count").fetchall()
    vault._database.execute(f"PRAGMA max_page_count = {pages}")
    found = ring.keys_for([wanted(f"t{number}", subject="x" * 50) for number in range(200)])
    assert all(isinstance(each, SealingError) for each in found)
    assert vault.names() == {kept}
    vault._database.execute("PRAGMA max_page_count = 100000")
    assert all(isinstance(each, SealingKey) for each in ring.keys_for([wanted(f"t{number}") for number in range(200)]))
    vault.close()


# --- key-encryption keys ---


def test_rotation_wraps_every_key_anew_and_what_was_saved_before_opens_no_more(tmp_path: Path) -> None:
    vault, ring = opened(tmp_path)
    keys = {each: key_for(ring, each).id for each in (wanted(), wanted("globex"), wanted(subject="joe"))}
    digest = ring.digest("acme", "joe")
    told, sealed = sealed_by(ring, key_for(ring, wanted(subject="joe")))
    before = saved(tmp_path / "sealing" / NAME)
    first = FileKeks(tmp_path / "kek", create=False).primary
    kek, count = ring.rotate()
    assert (kek != first, count) == (True, 2), "a subject's key is wrapped by its tenant's"
    assert [path.stem for path in (tmp_path / "kek").glob("*.kek")] == [kek]
    vault.close()
    vault, ring = opened(tmp_path)
    assert {each: key_for(ring, each).id for each in keys} == keys
    assert ring.digest("acme", "joe") == digest
    assert ring.open(keys[wanted(subject="joe")], told, sealed, b"here") == b"words"
    vault.close()
    (tmp_path / "sealing" / NAME).write_bytes(before)
    with pytest.raises(KekDamagedError, match=first):
        opened(tmp_path)


def test_a_rotation_that_was_interrupted_is_finished_by_the_next_start(tmp_path: Path) -> None:
    vault, ring = opened(tmp_path)
    key_for(ring, wanted())
    vault.close()
    # The new key is the primary one, and nothing is wrapped by it yet.
    FileKeks(tmp_path / "kek", create=False).rotate()
    assert len(list((tmp_path / "kek").glob("*.kek"))) == 2
    vault, ring = opened(tmp_path)
    assert ring.rewrap() == 1
    assert ring.rewrap() == 0
    assert len(list((tmp_path / "kek").glob("*.kek"))) == 1
    vault.close()


@pytest.mark.parametrize("harm", ["missing", "corrupt", "short", "other", "pointer"])
def test_a_key_encryption_key_that_is_missing_or_corrupt_is_told_and_never_replaced(tmp_path: Path, harm: str) -> None:
    vault, _ = opened(tmp_path)
    vault.close()
    [path] = (tmp_path / "kek").glob("*.kek")
    if harm == "missing":
        path.unlink()
        (tmp_path / "kek" / "primary").unlink()
    elif harm == "pointer":
        path.unlink()
    else:
        path.write_text({"corrupt": "no hex", "short": "ab", "other": "ab" * 32}[harm])
    before = sorted(each.name for each in (tmp_path / "kek").iterdir())
    with pytest.raises(KekDamagedError, match="kek"):
        opened(tmp_path)
    assert sorted(each.name for each in (tmp_path / "kek").iterdir()) == before


def test_key_files_are_the_owners_alone(tmp_path: Path) -> None:
    vault, _ = opened(tmp_path)
    vault.close()
    for folder, pattern in (("kek", "*"), ("sealing", "*")):
        assert (tmp_path / folder).stat().st_mode & 0o077 == 0
        assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / folder).glob(pattern))
