"""API keys: making, parsing, hashing."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs import apikeys

PEPPER = b"p" * 32


@given(st.binary(min_size=32, max_size=32))
def test_made_keys_parse(random: bytes) -> None:
    made = apikeys.make(lambda count: random[:count])
    assert apikeys.parse(made.text) == made
    assert made.text == f"wk_{made.id}_{made.text.rsplit('_', 1)[1]}"


def test_keys_differ() -> None:
    assert len({apikeys.make(secrets.token_bytes).text for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "text",
    [
        "",
        "wk_",
        "wk_abcd",
        "wk_abcd_short",
        "xx_abcd_" + "s" * 32,
        "wk_ABCD_" + "s" * 32,
        "wk_abcd_" + "s" * 32 + "\n",
        " wk_abcd_" + "s" * 32,
        "wk_abcd_" + "s" * 1000,
        "wk_abcd_" + "ß" * 32,
    ],
)
def test_malformed(text: str) -> None:
    assert apikeys.parse(text) is None


def test_hash_binds_key_and_pepper() -> None:
    key, other = apikeys.make(secrets.token_bytes), apikeys.make(secrets.token_bytes)
    stored = apikeys.hash_key(key, PEPPER)
    assert len(stored) == 32
    assert apikeys.matches(key, stored, PEPPER)
    assert not apikeys.matches(other, stored, PEPPER)
    assert not apikeys.matches(key, stored, b"q" * 32)
    assert not apikeys.matches(key, b"", PEPPER)


def test_secret_stays_out_of_repr() -> None:
    key = apikeys.make(secrets.token_bytes)
    assert key.text not in repr(key)


def test_pepper() -> None:
    assert apikeys.decode_pepper(b"0123456789abcdef\n") == b"0123456789abcdef"
    with pytest.raises(ValueError, match="16"):
        apikeys.decode_pepper(b"short")
    with pytest.raises(ValueError, match="16"):
        apikeys.hash_key(apikeys.make(secrets.token_bytes), b"")
