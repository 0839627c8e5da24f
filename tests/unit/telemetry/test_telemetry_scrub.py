"""Secrets and personal data are taken out of texts that are kept, in time linear in the text."""

import time

import pytest

from libs import apikeys
from libs.telemetry.scrub import LONGEST, has_findings, scrub, scrub_value

PEM = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIBkg\nabc=\n-----END EC PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (apikeys.make(bytes).text, "key"),
        (apikeys.make(lambda n: b"\xff" * n).text, "key"),
        ("sk-proj-abcdefghijklmnop1234", "key"),
        ("AKIAABCDEFGHIJKLMNOP", "key"),
        ("ghp_0123456789abcdefghijABCDEFGHIJ", "key"),
        ("eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "jwt"),
        ("Bearer abcdefgh12345678", "bearer"),
        ("basic dXNlcjpwYXNzd29yZA==", "bearer"),
        (PEM, "pem"),
        ("jane.doe+x@mail.example.org", "email"),
        ("4111 1111 1111 1111", "card"),
        ("5500-0000-0000-0004", "card"),
        ("DE89 3704 0044 0532 0130 00", "iban"),
        ("GB82WEST12345698765432", "iban"),
        ("078-05-1120", "ssn"),
    ],
)
def test_every_shape_is_found_wherever_it_stands(text: str, kind: str) -> None:
    for around in ("{}", "before {} after", '"{}"', "x={}, y", "({})", "\n{}\n"):
        written = around.format(text)
        assert scrub(written) == around.format(f"[{kind}]")
        assert has_findings(written)


@pytest.mark.parametrize(
    "text",
    [
        "0f8fad5b-d9cb-469f-a165-70867728950e",
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "2027-01-15T08:00:00.000Z",
        "spiffe://weir.internal/sa/cli",
        "4111 1111 1111 1112",
        "DE88370400440532013000",
        "127.0.0.1:23800",
        "wk_ is how keys begin",
        "records 12345 to 67890",
        "ns 1800000000000000001",
        "tenants/acme/*",
    ],
)
def test_what_a_mesh_says_of_itself_stays(text: str) -> None:
    assert scrub(text) == text
    assert not has_findings(text)


def test_a_key_without_an_end_is_taken_out_to_the_end() -> None:
    assert scrub("x -----BEGIN RSA PRIVATE KEY-----\nMHcCAQEEIBkg\nabc") == "x [pem]"


def test_logins_are_taken_out_of_addresses() -> None:
    assert scrub("https://jane:secret@example/x") == "https://[login]example/x"


def test_nested_values_and_keys_are_scrubbed_and_depth_is_bounded() -> None:
    value = {"a": ["jane@example.org", 1, None, {"jane@example.org": "ok"}]}
    assert scrub_value(value) == {"a": ["[email]", 1, None, {"[email]": "ok"}]}
    deep: object = "jane@example.org"
    for _ in range(50):
        deep = [deep]
    assert "jane" not in str(scrub_value(deep))


def test_no_text_takes_long_and_none_is_kept_beyond_the_bound() -> None:
    for piece in ("a", "a@", "1", "1 ", "eyJ", "-----BEGIN KEY-----", "AB12 ", "bearer ", "://a:", "a@b-", "x.a@a.aa "):
        text = piece * (LONGEST // len(piece) + 100)
        started = time.process_time()
        assert len(scrub(text)) <= LONGEST + 100
        assert time.process_time() - started < 0.5
