"""What a comparison of two meshes says of pairs of windows."""

from __future__ import annotations

import os

from loadtest.ab import _variables, rows


def test_a_line_tells_both_sides_their_ratio_and_how_often_the_second_was_lower() -> None:
    measured = {"cpu_ms_per_request_c64": [(4.0, 3.0), (5.0, 5.0), (4.0, 2.0)]}
    assert rows(measured) == [
        ("cpu_ms_per_request_c64", "4.00 (4.00–5.00)", "3.00 (2.00–5.00)", "0.750 (0.500–1.000)", "2 of 3")
    ]


def test_variables_are_there_for_one_mesh_only() -> None:
    before = dict(os.environ)
    with _variables(["WEIR_TEST_AB=a=b", "PATH=/nowhere"]):
        assert (os.environ["WEIR_TEST_AB"], os.environ["PATH"]) == ("a=b", "/nowhere")
    assert dict(os.environ) == before
