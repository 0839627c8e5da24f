"""What replicas tell one another, written and read."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest
from weir.quota.v1 import quota_pb2

from libs.errors import Reason, WeirError
from libs.quota import Ask, Ledger, Replica
from services.ratelimit.convert import fill_state, piece_of
from tests.support.quota import pieces

NOW, SECOND = 10**18, 10**9
MIB = 2**20


def test_a_piece_of_state_is_read_as_it_was_written() -> None:
    replica = Replica(Ledger(part=("limiter-0", "1"), track_changes=True))
    replica.ledger.reserve(Ask("acme", "fast", "r1", 500), lease_ns=60 * SECOND, now=NOW)
    for piece in pieces(replica, NOW):
        message = quota_pb2.State()
        fill_state(message, piece)
        assert piece_of(message) == piece


def test_a_state_that_unpacks_to_too_much_is_refused_before_it_is_unpacked() -> None:
    packed = zlib.compressobj(9)
    bomb = b"".join(packed.compress(bytes(MIB)) for _ in range(256)) + packed.flush()
    assert len(bomb) < MIB
    tracemalloc.start()
    try:
        with pytest.raises(WeirError, match="too much") as refused:
            piece_of(quota_pb2.State(state=bomb))
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert refused.value.limit == "state"


@pytest.mark.parametrize("state", [b"", b"no", zlib.compress(b"no"), zlib.compress(bytes(1000))[:-6]])
def test_a_state_that_cannot_be_read_is_refused(state: bytes) -> None:
    with pytest.raises(WeirError, match="cannot be read") as refused:
        piece_of(quota_pb2.State(state=state))
    assert refused.value.reason is Reason.INVALID_REQUEST
