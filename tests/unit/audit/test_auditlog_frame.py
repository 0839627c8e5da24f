"""Sealed records: what is clear, what binds a payload to its place, and what leaves the log signed."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.auditlog import AuditFiles, Incoming, LogDamagedError, verify_directory
from libs.auditlog.base import BASE_NAME, decode_base
from libs.auditlog.chain import LineError, decode_entry
from libs.auditlog.export import ExportError, Head, Item, check, write
from libs.auditlog.files import CHECKPOINTS_NAME
from libs.auditlog.frame import Header, Sealed, associated, clear_body, draft_of, header_of, opened_body, take_apart
from libs.auditlog.keys import PUBLIC_NAME, load_or_create_signer, load_verifier, public_bytes
from libs.auditlog.layout import lines_of, segments
from libs.auditlog.retention import check_days, expired, first_kept_month, now_by
from libs.auditlog.tombstones import Tombstone, TombstoneError, Tombstones, body_of, read, signed
from libs.sealing.keyring import Keyring, SealingError, SealingKey
from libs.sealing.scope import KeyName, Scope, key_id
from libs.sealing.vault import Vault
from tests.support.auditfolder import audit_files
from tests.support.sealed import DAY, NOVEMBER, opened

WORDS = st.text(min_size=1, max_size=30)
ZERO = bytes(32)


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[tuple[Vault, Keyring]]:
    made = opened(tmp_path)
    yield made
    made[0].close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyring]:
    vault, ring = opened(tmp_path_factory.mktemp("keys"))
    yield ring
    vault.close()


def body(number: int = 1, tenant: str = "acme", **more: Any) -> dict[str, Any]:
    event = {"tenant": tenant, "request_id": f"r{number}", "prompt_tokens": 3, "worker": "w", **more}
    return {"id": f"r{number}", "source": "gateway/g", "time": "2026-11-23T08:00:00Z", "request": event}


def sealed(ring: Keyring, made: dict[str, Any]) -> Sealed:
    draft = draft_of(made)
    assert draft.wanted is not None
    [key] = ring.keys_for([draft.wanted])
    assert isinstance(key, SealingKey)
    return Sealed(draft, key, ring)


def open_at(ring: Keyring, record: bytes, prev: bytes = ZERO, sequence: int = 1) -> dict[str, Any]:
    parts, header = take_apart(record), header_of(record)
    assert parts is not None
    payload = ring.open(header.name.id, header.nonce.encode(), parts.sealed, associated(prev, sequence, parts.header))
    return opened_body(record, payload)


# --- the frame ---


def test_a_payload_opens_in_its_place_and_under_its_header_only(keys: tuple[Vault, Keyring]) -> None:
    _, ring = keys
    acme, globex = sealed(ring, body()), sealed(ring, body(2, "globex"))
    one, two = acme.record(ZERO, 1), globex.record(ZERO, 1)
    assert open_at(ring, one) == body()
    # Swapped between tenants, whole or with the key's name; another amount; another place; after other records.
    first, second = take_apart(one), take_apart(two)
    assert first is not None
    assert second is not None
    harms = [
        (first.header + b',"sealed":"' + second.sealed + b'"}', ZERO, 1),
        (one.replace(b'"tenant":"acme"', b'"tenant":"globex"'), ZERO, 1),
        (one.replace(b'"prompt_tokens":3', b'"prompt_tokens":1'), ZERO, 1),
        (one.replace(header_of(one).name.id.encode(), header_of(two).name.id.encode()), ZERO, 1),
        (one, ZERO, 2),
        (one, hashlib.sha256(b"").digest(), 1),
    ]
    for record, prev, sequence in harms:
        with pytest.raises(SealingError):
            open_at(ring, record, prev, sequence)


def test_the_same_words_twice_share_no_byte_of_nonce_and_payload(keys: tuple[Vault, Keyring]) -> None:
    one = sealed(keys[1], body())
    made = [take_apart(one.record(ZERO, 1)) for _ in range(2)]
    # A failed write puts another record, or the same, at the same place.
    assert made[0] != made[1]


@given(words=WORDS, tenant=WORDS, number=st.integers(0, 2**31))
def test_whatever_a_caller_writes_comes_back_and_only_the_bill_is_clear(
    shared: Keyring, words: str, tenant: str, number: int
) -> None:
    ring = shared
    made = body(1, tenant, reason=f'","sealed":"{words}', prompt_tokens=number, degraded=[words])
    record = sealed(ring, made).record(ZERO, 1)
    assert open_at(ring, record) == made
    assert clear_body(record)["request"] == {"tenant": tenant, "prompt_tokens": number}
    assert header_of(record).tenant == tenant


def test_a_persons_key_id_is_sealed_and_a_keys_is_part_of_the_bill() -> None:
    assert b"key-1" in draft_of(body(key_id="key-1")).header
    draft = draft_of(body(key_id="jwt-0123", user="joe"))
    assert b"jwt-0123" not in draft.header
    assert b"joe" not in draft.header
    assert draft.wanted is not None
    assert draft.wanted.subject == "joe"


# --- tombstones ---


def grave(folder: Path, **more: Any) -> bytes:
    scope = Scope(upto=5, tenant="acme", **more)
    made = body_of(
        scope,
        record_id="t1",
        source="audit/a",
        time="2026-11-23T08:00:00Z",
        actor="operator:ann",
        reason="mistake",
        reference="",
        destroyed=2,
    )
    return signed(made, load_or_create_signer(folder))


def test_a_tombstone_is_believed_with_its_signature_only(tmp_path: Path) -> None:
    record, verify = grave(tmp_path), load_verifier_of(tmp_path)
    found = read(7, record, verify)
    assert found is not None
    assert found.scope == Scope(upto=5, tenant="acme")
    for harm in (
        record.replace(b'"acme"', b'"evil"'),
        record.replace(b'"upto":5', b'"upto":9'),
        record.replace(b'"mistake"', b'"retention"'),
        record.replace(b'"signature":"', b'"signature":"00'),
        b'{"id":"t","tombstone":{}}',
    ):
        with pytest.raises(TombstoneError):
            read(7, harm, verify)
    assert read(8, b'{"id":"r","request":{}}', verify) is None


def load_verifier_of(folder: Path) -> Any:
    load_or_create_signer(folder)
    return load_verifier(folder / PUBLIC_NAME)


def test_the_first_tombstone_that_covers_a_key_is_told() -> None:
    old, new = (KeyName(key_id(serial, b"abc"), "acme", "request", "2026-11") for serial in (3, 9))
    graves = Tombstones(
        [
            Tombstone(20, b"", Scope(upto=12, tenant="acme")),
            Tombstone(10, b"", Scope(upto=5, tenant="acme")),
            Tombstone(15, b"", Scope(upto=12, tenant="acme", subject="d", keys=frozenset({new.id}))),
        ]
    )
    assert [graves.covering(each).number for each in (old, new)] == [10, 15]  # type: ignore[union-attr]
    assert graves.covering(replace(old, tenant="globex")) is None


# --- where a truncated log begins ---


def filled(folder: Path, records: int = 12) -> AuditFiles:
    files = audit_files(folder, segment_bytes=600)
    for number in range(1, records + 1):
        files.commit([Incoming(f"r{number}", b'{"id":"r%d"}' % number)])
    return files


def report_of(folder: Path) -> Any:
    return verify_directory(
        folder / "log", checkpoints=folder / "checkpoints", public_key=folder / "keys" / PUBLIC_NAME
    )


def test_a_log_that_was_truncated_verifies_from_its_base_and_goes_on(tmp_path: Path) -> None:
    files = filled(tmp_path)
    kept = segments(tmp_path / "log")[2][0]
    files.truncate(kept)
    files.truncate(3)  # not the beginning of a segment: nothing goes
    head = files.hash_at(kept - 1)
    assert head == files.base.hash
    files.commit([Incoming("r13", b'{"id":"r13"}')])
    files.close()
    report = report_of(tmp_path)
    assert (report.ok, report.first, report.records) == (True, kept, 13), report.faults
    files = audit_files(tmp_path, segment_bytes=600)
    assert (files.count, files.base.count) == (13, kept - 1)
    files.commit([Incoming("r14", b'{"id":"r14"}')])
    files.close()
    assert report_of(tmp_path).ok


def test_a_crash_while_a_log_is_truncated_is_finished_at_the_next_start(tmp_path: Path) -> None:
    files = filled(tmp_path)
    old = {path: path.read_bytes() for _, path in segments(tmp_path / "log")[:2]}
    files.truncate(segments(tmp_path / "log")[2][0])
    files.close()
    for path, content in old.items():
        path.write_bytes(content)
    assert report_of(tmp_path).ok
    audit_files(tmp_path).close()
    assert not any(path.exists() for path in old)


@pytest.mark.parametrize("harm", ["no base", "forged", "a checkpoint", "old base", "more is gone"])
def test_a_beginning_that_no_signed_base_explains_is_damage(tmp_path: Path, harm: str) -> None:
    files = filled(tmp_path)
    base, found = tmp_path / "checkpoints" / BASE_NAME, segments(tmp_path / "log")
    files.truncate(found[1][0])
    before = base.read_bytes()
    files.truncate(found[2][0])
    files.close()
    if harm == "no base":
        base.unlink()
    elif harm == "forged":
        base.write_bytes(base.read_bytes().replace(b'"base":', b'"base":1'))
    elif harm == "a checkpoint":
        checkpoint = lines_of(tmp_path / "checkpoints" / CHECKPOINTS_NAME)[0][-1]
        base.write_bytes(checkpoint.replace(b'"count"', b'"base"'))
    elif harm == "old base":
        base.write_bytes(before)
    else:
        found[2][1].unlink()
    assert not report_of(tmp_path).ok
    with pytest.raises(LogDamagedError):
        audit_files(tmp_path)


def test_a_base_is_read_as_it_was_written_and_no_otherwise(tmp_path: Path) -> None:
    files = filled(tmp_path)
    files.truncate(segments(tmp_path / "log")[1][0])
    files.close()
    line = (tmp_path / "checkpoints" / BASE_NAME).read_bytes()
    assert decode_base(line, load_verifier(tmp_path / "keys" / PUBLIC_NAME)).count > 0
    for at in range(0, len(line), 7):
        with pytest.raises(LineError):
            decode_base(
                line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :], load_verifier(tmp_path / "keys" / PUBLIC_NAME)
            )


# --- how long what is kept ---


def test_retention_counts_whole_months_and_needs_two_clocks() -> None:
    assert check_days({"request": 30}) == ""
    assert "'chats'" in check_days({"chats": 3})
    assert "at least a day" in check_days({"request": 0})
    assert now_by(NOVEMBER, "") == 0
    assert now_by(NOVEMBER, "2026-11") == NOVEMBER
    assert now_by(NOVEMBER + 900 * DAY, "2026-11") == NOVEMBER + 7 * DAY + 16 * 3600, "the end of November"
    assert first_kept_month(23, NOVEMBER) == "2026-10"
    assert first_kept_month(22, NOVEMBER) == "2026-11"
    assert first_kept_month(400, 0.0) == "1970-01"


def test_only_what_is_too_old_as_a_whole_is_expired() -> None:
    old = Header("r", time="2026-09-01T00:00:00Z", data_class="request")
    days = {"request": 60, "admin": 300}
    assert expired([old, Header("m", data_class="marks")], days, NOVEMBER)
    for keeps in (
        Header("r", time="2026-11-01T00:00:00Z", data_class="request"),
        Header("a", time="2026-09-01T00:00:00Z", data_class="admin"),
        Header("t", time="2026-09-01T00:00:00Z", data_class="tombstone"),
        Header("s", time="2026-09-01T00:00:00Z", data_class="safety"),
        Header("r", time="yesterday", data_class="request"),
        Header("r", data_class="request"),
        Header("x", time="2026-09-01T00:00:00Z"),
    ):
        assert not expired([old, keeps], days, NOVEMBER), keeps


# --- exports ---


def exported(folder: Path, **more: Any) -> list[bytes]:
    files = filled(folder, 4)
    files.close()
    lines = [line for _, path in segments(folder / "log") for line in lines_of(path)[0]]
    key = base64.b64encode(public_bytes(folder / "keys" / PUBLIC_NAME)).decode()
    given: dict[str, Any] = {"by": "operator:ann", "time": "now", "first": 1, "last": 4, "public_key": key, **more}
    items = [Item(line=line.decode(), record={"id": f"r{number}"}) for number, line in enumerate(lines, 1)]
    checkpoint = files.checkpoint_line.decode()
    return list(write(Head(checkpoint=checkpoint, **given), items, load_or_create_signer(folder / "keys")))


def test_an_export_proves_itself(tmp_path: Path) -> None:
    lines = exported(tmp_path)
    found = check(lines)
    assert (found.records, found.erased, found.chained) == (4, 0, True)
    assert check(lines, fingerprint=found.key_fingerprint) == found
    with pytest.raises(ExportError, match="fingerprint"):
        check(lines, fingerprint="0" * 64)


@pytest.mark.parametrize(
    "harm",
    [
        lambda lines: lines[:-1],
        lambda lines: lines[:1],
        lambda lines: [],
        lambda lines: [*lines[:2], *lines[3:]],
        lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        lambda lines: [line.replace(b'"record":{"id":"r2"}', b'"record":{"id":"r9"}') for line in lines],
        lambda lines: [line.replace(b"operator:ann", b"operator:eve") for line in lines],
        lambda lines: [line.replace(b"r2", b"r9") for line in lines],
        lambda lines: [line.replace(b"export/1", b"export/2") for line in lines],
        lambda lines: [b"{}\n", *lines[1:]],
    ],
)
def test_an_export_that_was_touched_does_not_hold(tmp_path: Path, harm: Any) -> None:
    lines = exported(tmp_path)
    with pytest.raises(ExportError):
        check(harm(lines))


def test_an_export_of_one_tenant_holds_no_other(tmp_path: Path, keys: tuple[Vault, Keyring]) -> None:
    files = audit_files(tmp_path)
    for number, tenant in enumerate(("acme", "globex"), 1):
        files.commit([Incoming(f"r{number}", sealed(keys[1], body(number, tenant)))])
    files.close()
    lines = [line for _, path in segments(tmp_path / "log") for line in lines_of(path)[0]]
    assert decode_entry(lines[0]).sequence == 1
    key = base64.b64encode(public_bytes(tmp_path / "keys" / PUBLIC_NAME)).decode()
    head = Head(by="operator:ann", time="now", tenant="acme", first=1, last=2, public_key=key)
    sign = load_or_create_signer(tmp_path / "keys")
    assert not check(write(head, [Item(line=lines[0].decode())], sign)).chained
    with pytest.raises(ExportError, match="another tenant"):
        check(write(head, [Item(line=line.decode()) for line in lines], sign))
