"""What `weir predict` makes of files, and what `weir predictors` shows of metrics pages."""

from __future__ import annotations

from typing import Any

import pytest
from weir.client._tensors import Column, Declared
from weir.registry.v1 import registry_pb2 as pb

from libs.rows import RowsError, parts_of
from services.cli.app import UsageError
from services.cli.commands import predict, predictors
from services.cli.output import table_lines

MATRIX = [Declared("features", "FP32", (-1, 2))]
TEXT = [Declared("text", "BYTES", (-1,))]
MIXED = [Declared("age", "INT64", (-1,)), Declared("member", "BOOL", (-1,))]


@pytest.mark.parametrize(
    ("lines", "tensors", "parts"),
    [
        (
            [["1", "2"], ["3", ""], ["5", "6"]],
            MATRIX,
            "[{'features': [[1.0, 2.0], [3.0, nan]]}, {'features': [[5.0, 6.0]]}]",
        ),
        ([["hello"], ["7"]], TEXT, "[{'text': ['hello', '7']}]"),
        ([["text"], ["hello"]], TEXT, "[{'text': ['hello']}]"),
        ([["member", "age"], ["true", "4"], ["0", "5"]], MIXED, "[{'member': [True, False], 'age': [4, 5]}]"),
    ],
)  # fmt: skip
def test_rows_of_a_file_become_inputs(lines: Any, tensors: Any, parts: str) -> None:
    assert repr(list(predict.parts_of(lines, tensors, 2))) == parts


def test_a_head_of_a_matrix_is_no_rows_and_skipped_only_on_request() -> None:
    lines = [["width", "height"], ["1", "2"], []]
    with pytest.raises(UsageError, match=r"names columns \(width,height\).* those of 'features'.* --skip-head"):
        list(predict.parts_of(lines, MATRIX, 2))
    assert list(predict.parts_of(lines, MATRIX, 2, skip_head=True)) == [{"features": [[1.0, 2.0]]}]


NAMED = [pb.TensorSpec(name="t", datatype="FP32", shape=[-1, 2], columns=[{"name": "a"}, {"name": "b"}])]


def test_columns_that_have_names_are_put_in_order_and_others_left_out() -> None:
    lines = [["b", "label", "a"], ["2", "yes", "1"], ["4", "no", ""]]
    assert repr(list(parts_of(lines, NAMED, 9))) == "[{'t': [[1.0, 2.0], [nan, 4.0]]}]"
    assert list(parts_of([["b", "a"], ["2", "1"]], NAMED, 9, skip_head=True)) == [{"t": [[2.0, 1.0]]}]
    assert list(parts_of([["3", "4"]], NAMED, 9)) == [{"t": [[3.0, 4.0]]}]
    asked = [Declared("t", "FP32", (-1, 2), (Column("a"), Column("b")))]  # as a predictor tells it
    assert list(parts_of([["b", "a"], ["2", "1"]], asked, 9)) == [{"t": [[1.0, 2.0]]}]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([["b", "c"], ["1", "2"]], "the file has no column 'a'; the model takes a,b"),
        ([["x", "y"], ["1", "2"]], "the file has no column 'a'"),
        ([["a", "b", "a"], ["1", "2", "3"]], "the file names a column twice"),
        ([["a", "b"]], "the file has no rows"),
        ([["b", "a"], ["1", "2"], ["3"]], "row 2 has 1 columns, not 2"),
        ([["b", "a"], ["1", "x"]], "row 1, column 1: 'x' is no FP32"),
    ],
)
def test_heads_that_do_not_fit_the_names(lines: Any, why: str) -> None:
    with pytest.raises(RowsError, match=why):
        list(parts_of(lines, NAMED, 9))


@pytest.mark.parametrize(
    ("lines", "tensors", "why"),
    [
        ([], MATRIX, "no rows"),
        ([["1", "2"], ["3"]], MATRIX, "row 2 has 1 columns, not 2"),
        ([["1", "2"], ["3", "x"]], MATRIX, "row 2, column 2: 'x' is no FP32"),
        ([["1", "x"], ["3", "4"]], MATRIX, "row 1, column 2: 'x' is no FP32"),
        ([["age", "member"], ["4.5", "true"]], MIXED, "row 1, column 1: '4.5' is no INT64"),
        ([["age", "member"], ["4", "maybe"]], MIXED, "'maybe' is no BOOL"),
        ([["4", "true"]], MIXED, "must name the inputs: age,member"),
        ([["1", "2"]], [Declared("image", "FP32", (-1, 2, 2))], "use --json"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_line(lines: Any, tensors: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        list(predict.parts_of(lines, tensors, 8))


@pytest.mark.parametrize("text", ["{", "[1]", '{"features": 1}'])
def test_inputs_that_are_no_object_of_lists_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        predict._inputs(text)


def test_on_a_terminal_outputs_are_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    predict._write_rows([{"score": [[0.123456789, 1e-9]], "topic": ["systems"]}, {"score": [[1, 2]], "topic": ["x"]}])
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown == [
        ["ROW", "score.0", "score.1", "topic"],
        ["1", "0.123457", "1e-09", "systems"],
        ["2", "1", "2", "x"],
    ]
    predict._write_rows([{"scores": [[0.5] * 40]}])  # more than a terminal is wide
    assert capsys.readouterr().out.startswith("scores.0,scores.1,")


def test_outputs_are_written_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    predict._write_rows(
        [{"digit": [3, 4], "scores": [[0.5, 0.25], [1.0, 0.0]]}, {"digit": [5], "scores": [[0.0, 1.0]]}]
    )
    written = capsys.readouterr().out.split()
    assert written == ["digit,scores.0,scores.1", "3,0.5,0.25", "4,1.0,0.0", "5,0.0,1.0"]


PAGE = """
weir_predictor_inference_request_success_total{model="m@1"} 8.0
weir_predictor_inference_request_failure_total{model="m@1"} 1.0
weir_predictor_inference_count_total{model="m@1"} 24.0
weir_predictor_inference_exec_count_total{model="m@1"} 6.0
weir_predictor_inference_queue_duration_seconds_total{model="m@1"} 0.016
weir_predictor_inference_compute_infer_duration_seconds_total{model="m@1"} 0.012
weir_predictor_inference_request_duration_seconds_bucket{le="0.1",model="m@1"} 8.0
"""


def endpoint(**more: Any) -> dict[str, Any]:
    return {"instance": "predictor-a", "zone": "zone-a", "model_versions": ["m@1"], "model_states": [], **more}


def shown(rows: list[dict[str, Any]]) -> dict[str, object]:
    return dict(zip(predictors._COLUMNS, predictors.cells(rows[0]), strict=True))


def test_a_version_is_shown_with_what_its_process_counted() -> None:
    state = {"model_version": "m@1", "state": "LOAD_STATE_READY", "memory_bytes": 3 << 20}
    row = shown(predictors.versions_of(endpoint(model_states=[state]), PAGE))
    assert (row["STATE"], row["MEMORY"]) == ("ready", "3 MiB")
    assert (row["OK"], row["FAILED"], row["ROWS"], row["EXECUTIONS"], row["ROWS/EXEC"]) == (8, 1, 24, 6, "4.0")
    assert (row["QUEUE"], row["INFER"]) == ("2.00 ms", "1.50 ms")


def test_a_version_that_failed_says_why_and_a_page_that_is_away_leaves_gaps() -> None:
    state = {"model_version": "m@2", "state": "LOAD_STATE_FAILED", "detail": "golden case 0"}
    loaded, failed = predictors.versions_of(endpoint(model_states=[state]), None)
    assert (loaded["state"], loaded["counts"]) == ("ready", None)
    assert (failed["state"], failed["detail"]) == ("failed", "golden case 0")
    assert shown([failed])["MEMORY"] is None
    assert len(predictors.cells(loaded)) == len(predictors._COLUMNS)
    [empty] = predictors.versions_of(endpoint(model_versions=[]), PAGE)
    assert empty["state"] == "empty"
    assert table_lines(predictors._COLUMNS, [predictors.cells(empty)])
