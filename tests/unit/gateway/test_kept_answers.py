"""What is kept for idempotency keys comes back as it was, and another form is told from it."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.quota.prices import Price
from services.gateway.embed import Embedded
from services.gateway.kept import pack_vectors, unpack, unpack_vectors
from services.gateway.request import Accepted

NUMBERS = st.floats(width=32, allow_nan=False)
ACCEPTED = Accepted(
    request_id="r1",
    trace_id="t1",
    model_version="m@1",
    arm="canary",
    prompt_tokens=3,
    simulated=True,
    zone="a",
    created=1_800_000_000,
    degraded=("quota_local",),
    price=Price(input=1, output=2),
)


@given(st.lists(st.lists(NUMBERS, max_size=5), max_size=3), st.lists(st.text(max_size=9)).map(tuple))
def test_vectors_come_back_to_the_last_bit(vectors: list[list[float]], policies: tuple[str, ...]) -> None:
    embedded = Embedded(ACCEPTED, [array("f", each) for each in vectors])
    packed = pack_vectors((embedded, policies))
    assert unpack_vectors(packed) == (embedded, policies)
    with pytest.raises(ValueError, match=r"."):
        unpack(packed)
