"""Both keepers of key-encryption keys: files, and AWS KMS as moto plays it over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from libs.sealing.keks import KekAwayError, KekDamagedError, Keks
from libs.sealing.keyring import Keyring
from libs.sealing.opening import open_keks
from libs.sealing.vault import Vault
from tests.support.sealed import Clock, key_for, wanted

KEY = bytes(range(32))
CONTEXT = {"tenant": "acme", "class": "request", "month": "2026-11", "key": "1"}


@pytest.fixture(scope="module")
def kms() -> Iterator[str]:
    """The address of a KMS server, with credentials in the environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            patched.setenv(name, value)
        yield f"http://{host}:{port}"
    server.stop()


def kms_key(endpoint: str) -> str:
    """The address of a new key."""
    client = boto3.client("kms", endpoint_url=endpoint)
    arn = client.create_key()["KeyMetadata"]["Arn"]
    client.close()
    return f"awskms:///{arn}?region=us-east-1&endpoint={endpoint}"


@pytest.fixture(params=["files", "kms"])
def keks(request: pytest.FixtureRequest, tmp_path: Path) -> Keks:
    if request.param == "files":
        return open_keks(str(tmp_path / "kek"), create=True)
    return open_keks(kms_key(request.getfixturevalue("kms")), create=True)


def test_a_key_opens_with_its_context_only(keks: Keks) -> None:
    wrapped = keks.wrap(KEY, CONTEXT)
    assert KEY not in wrapped
    assert keks.unwrap(keks.primary, wrapped, CONTEXT) == KEY
    harms = [
        (wrapped, CONTEXT | {"tenant": "globex"}),
        (wrapped[:-1] + bytes([wrapped[-1] ^ 1]), CONTEXT),
        (b"", CONTEXT),
        (b"x" * 10, CONTEXT),
    ]
    for harmed, context in harms:
        with pytest.raises((KekDamagedError, KekAwayError)):
            keks.unwrap(keks.primary, harmed, context)


def test_another_key_opens_nothing(keks: Keks) -> None:
    wrapped = keks.wrap(KEY, CONTEXT)
    with pytest.raises(KekDamagedError):
        keks.unwrap("0123456789abcdef", wrapped, CONTEXT)


def test_a_keyring_works_over_either(keks: Keks, tmp_path: Path) -> None:
    vault, clock = Vault(tmp_path / "sealing"), Clock()
    ring = Keyring(vault, keks, now=clock, monotonic=clock)
    wants = (wanted(), wanted(subject="joe"))
    made = [key_for(ring, each).id for each in wants]
    again = Keyring(vault, keks, now=clock, monotonic=clock)
    assert [key_for(again, each).id for each in wants] == made
    vault.close()


def test_another_key_of_kms_in_the_settings_takes_over(kms: str, tmp_path: Path) -> None:
    vault, clock = Vault(tmp_path / "sealing"), Clock()
    old, new = open_keks(kms_key(kms), create=True), open_keks(kms_key(kms), create=False)
    made = key_for(Keyring(vault, old, now=clock, monotonic=clock), wanted())
    ring = Keyring(vault, new, now=clock, monotonic=clock)
    assert ring.rewrap() == 1
    found = vault.get(made.id)
    assert found is not None
    assert found.kek == new.primary
    assert key_for(ring, wanted()).id == made.id
    vault.close()


def test_a_kms_that_does_not_answer_is_away_and_not_damaged() -> None:
    gone = open_keks("awskms:///alias/audit?region=us-east-1&endpoint=http://127.0.0.1:1", create=False)
    with pytest.raises(KekAwayError) as caught:
        gone.wrap(KEY, CONTEXT)
    assert KEY.hex() not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["awskms://host/key", "awskms:///", "gcpkms:///key", "awskms:///key?colour=red", "awskms:///key?region"]
)
def test_an_address_that_makes_no_sense_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"kek|bad query"):
        open_keks(address, create=True)
