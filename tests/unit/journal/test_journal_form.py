"""The form of a journal: what was written whole is found, whatever is around it; nothing else is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from libs.journal import form

JOURNAL, EPOCH = form.Identity(0x1234_5678_9ABC_DEF0, 3), (3 << 32) | 0xC0FFEE
PAYLOADS = st.lists(st.binary(max_size=200), max_size=12)


def segment(payloads: list[bytes], *, size: int = 8192, openings: bool = False) -> tuple[bytes, list[int]]:
    """A segment's bytes, and where each frame begins."""
    written, at = form.segment_head(JOURNAL), []
    for number, payload in enumerate(payloads, 1):
        at.append(len(written))
        written += form.frame(EPOCH, number, number if openings else 0, payload)
    return written.ljust(size, b"\0"), at


def read(data: bytes) -> dict[int, bytes]:
    return {each.sequence: each.payload for each in form.frames(data, EPOCH, after=0, stop=len(data))}


@given(PAYLOADS, st.integers(0, 8192))
def test_of_a_file_that_ends_anywhere_all_that_was_whole_is_read(payloads: list[bytes], cut: int) -> None:
    data, starts = segment(payloads)
    whole = {
        number: payload
        for number, (payload, start) in enumerate(zip(payloads, starts, strict=True), 1)
        if start + 24 + len(payload) <= cut
    }
    assert read(data[:cut].ljust(len(data), b"\0")).items() >= whole.items()
    assert read(data[:cut]) == whole  # and nothing that was not


@given(PAYLOADS, st.data())
def test_damage_takes_what_it_touches_and_nothing_else(payloads: list[bytes], data: st.DataObject) -> None:
    written, starts = segment(payloads)
    damaged = bytearray(written)
    begin = data.draw(st.integers(form.SEGMENT_HEAD, len(written) - 1))
    noise = data.draw(st.binary(min_size=1, max_size=300))[: len(written) - begin]
    damaged[begin : begin + len(noise)] = noise
    found = read(bytes(damaged))
    for number, (payload, start) in enumerate(zip(payloads, starts, strict=True), 1):
        end = start + 24 + len(payload)
        if bytes(damaged[start:end]) == written[start:end]:
            assert found.pop(number) == payload
    assert found == {}


def test_a_frame_within_a_payload_is_none() -> None:
    """Who gets words into a record, and damage beside it, forges none: the checksum has what he cannot know."""
    forged = form.frame(EPOCH ^ 1, 2, 0, b"forged")
    data, [start, _] = segment([forged, b"last"])
    damaged = bytearray(data)
    damaged[start] ^= 1
    assert read(bytes(damaged)) == {2: b"last"}


@given(st.lists(st.binary(max_size=100), max_size=8), st.sets(st.integers(1, 8)), st.data())
def test_what_was_begun_and_not_ended_is_running(payloads: list[bytes], ended: set[int], data: st.DataObject) -> None:
    geometry = form.Geometry(8, 128)
    slots = bytearray(form.slots_head(geometry).ljust(geometry.total, b"\0"))
    for place, payload in enumerate(payloads):
        written = form.slot(place + 1, payload)
        slots[geometry.at(place) : geometry.at(place) + len(written)] = written
        mark = form.SLOTS_HEAD + 8 * place
        slots[mark : mark + 8] = (1000 + place).to_bytes(8, "little")
    ends = b"".join(form.frame(EPOCH, at, number, b"end") for at, number in enumerate(sorted(ended), 1))
    torn = data.draw(st.none() | st.integers(0, 7))
    if torn is not None and torn < len(payloads):
        slots[geometry.at(torn)] ^= 0xFF
    left = form.recover([form.Segment(EPOCH, 1, form.segment_head(JOURNAL) + ends)], bytes(slots))
    assert (left.identity, left.epoch, left.last) == (JOURNAL, EPOCH, len(ended))
    assert left.running == tuple(
        form.Opening(place, place + 1, payload, 1000 + place)
        for place, payload in enumerate(payloads)
        if place + 1 not in ended and place != torn
    )


def test_a_head_or_a_name_that_does_not_hold_is_none() -> None:
    head = form.segment_head(JOURNAL)
    assert form.identity_of(head) == JOURNAL
    for damaged in (head[:-5], b"\1" + head[1:], head[:9] + b"\1" + head[10:], b""):
        assert form.identity_of(damaged) is None
    assert form.named(form.segment_name(EPOCH, 77)) == (EPOCH, 77)
    for name in ("lock", "slots", "0.seg", form.segment_name(EPOCH, 1)[:-4] + ".tmp"):
        try:
            form.named(name)
        except ValueError:
            continue
        raise AssertionError(name)


@given(st.integers(0, 2**63), st.integers(0, 2**40), st.integers(0, 2**40))
def test_epochs_grow_and_two_of_one_folder_differ(epoch: int, chance: int, other: int) -> None:
    following = form.next_epoch(epoch, chance)
    assert following > epoch
    assert (form.next_epoch(epoch, other) == following) == (chance % 2**32 == other % 2**32)
