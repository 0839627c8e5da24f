"""Fitting lengths: the table gives the trace back, and says how far it is off."""

from __future__ import annotations

import json
import random
import tomllib
from pathlib import Path

import pytest

from simulation import fit
from simulation.lengths import TABLES, load


def trace(folder: Path, *, correlated: bool) -> Path:
    """Lognormal prompts, outputs that follow them or do not, as a CSV file."""
    rng = random.Random(3)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for _ in range(4000):
        size = rng.gauss(0.0, 1.0)
        other = size if correlated else rng.gauss(0.0, 1.0)
        lines.append(f"x,{max(1, round(500 * 2.7**size))},{max(1, round(100 * 2.0**other))}")
    path = folder / "made_up.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("correlated", [False, True])
def test_the_table_gives_the_trace_back(tmp_path: Path, correlated: bool) -> None:
    read = fit.read(trace(tmp_path, correlated=correlated))
    table = fit.fit(read)
    error = fit.errors(read, table, samples=20_000)
    assert len(table.probabilities) == 64
    assert abs(error.worst_prompt) < 0.08
    assert abs(error.worst_output) < 0.08
    assert abs(error.mean_prompt) < 0.05
    assert abs(error.correlation) < 0.03
    assert table.correlation == pytest.approx(1.0 if correlated else 0.0, abs=0.05)


def test_json_lines_are_read_and_the_file_that_is_written_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "conversation.jsonl"
    rows = ({"timestamp": 0, "input_length": 10 + i, "output_length": 1 + i % 7} for i in range(500))
    path.write_text("\n".join(json.dumps(row) for row in rows))
    out = tmp_path / "lengths.toml"
    fit.main([str(path), "--out", str(out)])
    (table,) = load(out).values()
    assert table.name == "conversation"
    assert (table.prompt[0], table.prompt[-1]) == (10, 509)
    assert (table.output[0], table.output[-1]) == (1, 7)
    assert tomllib.loads(out.read_text())["lengths"]["conversation"]["rows"] == 500


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "ContextTokens,GeneratedTokens\n1,2\n"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"not a trace|too few"):
        fit.read(path)


def test_the_tables_that_come_with_it_say_where_they_are_from() -> None:
    data = tomllib.loads(TABLES.read_text())
    assert set(load()) == {"azure-conversation", "mooncake-conversation"}
    for body in data["lengths"].values():
        assert body["source"]
        assert body["file"]
        assert body["rows"] > 10_000
        assert max(abs(each) for each in body["errors"].values()) < 0.05


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lengths.toml"
    path.write_text("probabilities = [0, 1]\n[lengths.x]\nprompt = [1]\noutput = [1, 2]\ncorrelation = 0\n")
    with pytest.raises(ValueError, match="x: as many"):
        load(path)
