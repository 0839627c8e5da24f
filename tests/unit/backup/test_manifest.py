"""What a backup says of itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.backup.manifest import AuditPart, EtcdPart, Manifest, ManifestError, Piece, decode, encode, index_name

ETCD = EtcdPart(Piece("etcd.snapshot", "a" * 64, 4128), 17)


def test_it_is_read_as_it_was_written() -> None:
    made = Manifest(
        taken_at=1.5, previous="b" * 64, etcd=ETCD, audit=AuditPart((Piece("log/1.log", "c" * 64, 3),), 1, "d")
    )
    assert decode(encode(made)) == made
    assert encode(decode(encode(made))) == encode(made)
    assert [piece.path for piece in made.pieces] == ["etcd.snapshot", "log/1.log"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "log/../../up", ""])
def test_no_file_leads_out_of_the_folder(path: str) -> None:
    with pytest.raises(ManifestError, match="outside"):
        decode(encode(Manifest(taken_at=1.0, audit=AuditPart((Piece(path, "a" * 64, 1),), 1, "d"))))


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", encode(Manifest(taken_at=1.0, format="weir-backup/9")), encode(Manifest(taken_at=1.0))[:-1]],
)
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(ManifestError):
        decode(content)


@given(st.lists(st.integers(0, 4 * 10**12), min_size=2, max_size=2, unique=True))
def test_the_newest_is_the_first_by_name(moments: list[int]) -> None:
    earlier, later = (index_name(milliseconds / 1000) for milliseconds in sorted(moments))
    assert later < earlier
