"""Pack files that come with the service, or that it is pointed to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libs.safety_filter import PackError
from services.safety.app import SHIPPED
from services.safety.packs import load_shipped


def test_every_shipped_pack_compiles_so_that_a_start_need_not_look() -> None:
    assert load_shipped(SHIPPED, check=True).keys() == {"default@0", "strict@0"}


def test_packs_of_others_are_looked_at_before_the_service_starts(tmp_path: Path) -> None:
    rule = {"id": "a", "category": "c", "pattern": "(", "action": "block", "stage": "both", "replacement": ""}
    (tmp_path / "default.json").write_text(json.dumps({"rules": [rule]}))
    with pytest.raises(PackError):
        load_shipped(tmp_path, check=True)
    assert [each.pattern for each in load_shipped(tmp_path, check=False)["default@0"]] == ["("]
