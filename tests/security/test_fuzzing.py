"""No reader of what strangers send answers with anything but its own errors."""

import pytest

from tests.security.fuzzing import TARGETS, fuzz


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_input_is_answered_with_a_typed_error(name: str) -> None:
    tried, _ = fuzz(name, 150)
    assert tried >= 100
