"""Nothing is collected while a whole state is made."""

from __future__ import annotations

import gc

import pytest

from services.ratelimit.pauses import uncollected


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_as_before_after_it_and_after_a_failure(on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() is on
        with pytest.raises(ValueError, match="torn"), uncollected():
            raise ValueError("torn")
        assert gc.isenabled() is on
    finally:
        (gc.enable if before else gc.disable)()
