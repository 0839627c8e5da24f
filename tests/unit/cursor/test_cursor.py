"""Ids of events: what they say comes back as it was, and for nobody else."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.cursor import MAX_ID_CHARS, Cursor, Keyring, KeyringFile, Origin, Position, Trail, new_key, read_cursor
from libs.errors import Reason, WeirError

KEYS = Keyring([b"k" * 32])
BODY = b"b" * 16
NOW = 1_800_000_000
UUID = "1c9d5a52-8f0e-4a5e-9c9e-0d3f9b6f3c11"


def origin(**more: object) -> Origin:
    values = {
        "request_id": UUID,
        "created": NOW,
        "model_version": "weir-fast@1",
        "seed": 2**63 - 1,
        "max_tokens": 400,
        "choices": 1,
        "digest": b"12345678",
    }
    return Origin(**(values | more))  # type: ignore[arg-type]


def trail(of: Origin, keys: Keyring = KEYS, tenant: str = "acme", body: bytes = BODY) -> Trail:
    return Trail(keys, of, tenant=tenant, body=body)


def read(
    event: bytes | str, keys: Keyring = KEYS, tenant: str = "acme", body: bytes = BODY, now: float = NOW
) -> Cursor:
    return read_cursor(event, keys, tenant=tenant, body=body, now=now, life=3600.0)


def refused(event: bytes | str, **more: object) -> Reason:
    with pytest.raises(WeirError) as caught:
        read(event, **more)  # type: ignore[arg-type]
    assert caught.value.limit == "last_event_id"
    return caught.value.reason


names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=64)
pieces = st.lists(st.tuples(st.integers(0, 7), st.text(max_size=8), st.integers(0, 3), st.booleans()), min_size=1)


@given(
    request_id=names | st.uuids().map(str),
    version=names,
    seed=st.none() | st.integers(0, 2**63 - 1),
    choices=st.integers(1, 8),
    logprobs=st.booleans(),
    told=pieces,
)
def test_a_cursor_says_what_was_delivered(
    request_id: str,
    version: str,
    seed: int | None,
    choices: int,
    logprobs: bool,
    told: list[tuple[int, str, int, bool]],
) -> None:
    of = origin(request_id=request_id, model_version=version, seed=seed, choices=choices, logprobs=logprobs)
    made = trail(of)
    texts, counts, ended, event = [""] * choices, [0] * choices, [False] * choices, b""
    for tokens, (place, text, count, last) in enumerate(told):
        index = place % choices
        event = made.event(index, text, tokens, logprobs=count if logprobs else 0, ended=last)
        texts[index] += text
        counts[index] += count if logprobs else 0
        ended[index] = ended[index] or last
    found = read(event)
    assert found.origin == of
    assert found.tokens == len(told) - 1
    for index, position in enumerate(found.positions):
        check = crc32(texts[index].encode("utf-8", "surrogatepass"))
        assert position == Position(len(texts[index]), check, counts[index], ended[index])
    assert len(event) <= MAX_ID_CHARS
    # Whoever goes on from there makes the same ids as if nothing had happened.
    after = Trail(KEYS, of, tenant="acme", body=BODY, at=found.positions)
    assert after.event(0, "more", 9) == made.event(0, "more", 9)


def test_an_id_is_short_and_has_no_words() -> None:
    event = trail(origin()).event(0, "a secret of mine", 3)
    assert len(event) == 108
    assert b"secret" not in base64.b64decode(event)


@given(place=st.integers(0, 80), change=st.integers(1, 255))
def test_a_changed_bit_is_not_ours(place: int, change: int) -> None:
    raw = bytearray(base64.b64decode(trail(origin()).event(0, "text", 3)))
    raw[place] ^= change
    # The second and third byte name the key: another one may be one that is gone.
    assert refused(base64.b64encode(raw)) is (Reason.CURSOR_GONE if place in (1, 2) else Reason.CURSOR_INVALID)


@given(st.binary(max_size=200))
def test_rubbish_is_refused(raw: bytes) -> None:
    assert refused(base64.b64encode(raw)) in (Reason.CURSOR_INVALID, Reason.CURSOR_GONE)


@given(st.text(max_size=2000))
def test_rubbish_that_is_no_base64_is_refused(given: str) -> None:
    assert refused(given) in (Reason.CURSOR_INVALID, Reason.CURSOR_GONE)


def test_cut_short_or_drawn_out_it_is_not_ours() -> None:
    raw = base64.b64decode(trail(origin(choices=2)).event(1, "text", 3))
    for size in range(len(raw)):
        assert refused(base64.b64encode(raw[:size])) is Reason.CURSOR_INVALID
    assert refused(base64.b64encode(raw + b"\0")) is Reason.CURSOR_INVALID
    assert refused("A" * (MAX_ID_CHARS + 4)) is Reason.CURSOR_INVALID


def test_it_is_of_one_tenant_and_one_request() -> None:
    event = trail(origin()).event(0, "text", 3)
    assert refused(event, tenant="globex") is Reason.CURSOR_INVALID
    assert refused(event, body=b"c" * 16) is Reason.CURSOR_INVALID
    assert read(event).tokens == 3


def test_tenant_and_body_do_not_run_into_each_other() -> None:
    event = trail(origin(), tenant="ab", body=b"c").event(0, "text", 3)
    assert refused(event, tenant="a", body=b"bc") is Reason.CURSOR_INVALID


def test_what_is_too_old_is_gone_and_the_future_is_a_clock_that_goes_before() -> None:
    event = trail(origin()).event(0, "text", 3)
    assert refused(event, now=NOW + 3601) is Reason.CURSOR_GONE
    assert read(event, now=NOW + 3600).tokens == 3
    assert read(event, now=NOW - 1e6).tokens == 3


def test_a_key_is_rotated_without_refusing_anybody() -> None:
    old, new = new_key(), new_key()
    before = trail(origin(), Keyring([old])).event(0, "text", 3)
    both = Keyring([new, old])
    assert read(before, both).tokens == 3
    after = trail(origin(), both).event(0, "text", 3)
    assert read(after, Keyring([old, new])).tokens == 3
    assert refused(after, keys=Keyring([old])) is Reason.CURSOR_GONE
    assert refused(before, keys=Keyring([new])) is Reason.CURSOR_GONE


def test_a_keyring_follows_its_file(tmp_path: Path) -> None:
    path = tmp_path / "cursors"
    path.write_text(f"{'aa' * 32}\n")
    ring = KeyringFile(str(path))
    first = ring.keys
    ring.refresh()
    assert ring.keys is first
    later = tmp_path / "later"
    later.write_text(f"{'bb' * 32}\n{'aa' * 32}\n")
    os.replace(later, path)
    ring.refresh()
    assert ring.keys.signing == b"\xbb" * 32
    assert ring.keys.key(first.signing_id) == b"\xaa" * 32


@pytest.mark.parametrize("content", ["", "zz" * 32, "aa" * 31, "\n".join(["aa" * 32] * 17)])
def test_a_bad_file_is_refused_and_what_was_read_stays(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cursors"
    path.write_text(f"{'aa' * 32}\n")
    ring = KeyringFile(str(path))
    path.write_text(content)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is looked at
        ring.refresh()
    assert "zz" not in str(caught.value)
    assert ring.keys.signing == b"\xaa" * 32


def test_without_a_file_a_process_has_a_key_of_its_own() -> None:
    assert KeyringFile("").keys.signing != KeyringFile("").keys.signing


def test_names_that_do_not_fit_are_refused_at_once() -> None:
    for bad in (origin(request_id="x" * 255), origin(model_version="x" * 256), origin(choices=9)):
        with pytest.raises(ValueError, match=r"bytes|choices"):
            trail(bad)
