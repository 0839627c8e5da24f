"""Fits lengths to traces: `python -m simulation.fit FILE… [--out simulation/lengths.toml]`.

Reads CSV with the columns ContextTokens and GeneratedTokens (the Azure LLM inference trace) and JSON lines with
input_length and output_length (the Mooncake traces). The quantiles at 64 probabilities, denser in the tail, and the
rank correlation are kept; the traces are not. Prints how far samples drawn from the tables are from the trace.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulation.lengths import TABLES, Lengths

_LOW, _HIGH = 0.01, 0.972
_TAIL = (0.978, 0.984, 0.988, 0.991, 0.994, 0.996, 0.998, 0.999, 1.0)
PROBABILITIES = (
    *(0.0, 0.002, 0.005, _LOW),
    *(round(_LOW + i * (_HIGH - _LOW) / 51, 5) for i in range(1, 52)),
    *_TAIL,
)
"""Where lengths are kept: 64, evenly up to 0.972, then ever closer, since the tail is what fills a worker."""
CHECKED = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_SAMPLES = 200_000


@dataclass(frozen=True)
class Trace:
    """What is known of one trace and its lengths."""

    name: str
    file: str
    source: str
    date: str
    prompt: list[int]
    output: list[int]


# File names that are known: how the table is called, where the trace comes from, when it was recorded or published.
_KNOWN = {
    "azure_llm_2023_conv.csv": (
        "azure-conversation",
        "Azure LLM inference trace 2023, conversation (github.com/Azure/AzurePublicDataset, CC-BY 4.0)",
        "2023-11-16",
    ),
    "mooncake_conversation_trace.jsonl": (
        "mooncake-conversation",
        "Mooncake conversation trace (github.com/kvcache-ai/Mooncake, Apache-2.0)",
        "relative times only",
    ),
}


def read(path: Path) -> Trace:
    """The lengths of a trace.

    :raises ValueError: the file has other columns, or nothing in it.
    """
    name, source, date = _KNOWN.get(path.name, (path.stem.replace("_", "-"), path.name, "unknown"))
    try:
        pairs = [(p, o) for p, o in (_json_lines(path) if path.suffix == ".jsonl" else _csv(path)) if p > 0 and o > 0]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a trace that is known here: {error}") from error
    if len(pairs) < 100:
        raise ValueError(f"{path}: {len(pairs)} requests are too few")
    return Trace(name, path.name, source, date, [p for p, _ in pairs], [o for _, o in pairs])


def _csv(path: Path) -> Iterator[tuple[int, int]]:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield int(row["ContextTokens"]), int(row["GeneratedTokens"])


def _json_lines(path: Path) -> Iterator[tuple[int, int]]:
    with path.open() as file:
        for line in file:
            row = json.loads(line)
            yield int(row["input_length"]), int(row["output_length"])


def fit(trace: Trace) -> Lengths:
    """The table of a trace."""
    # Spearman's rank correlation r belongs to a Gaussian copula of 2·sin(πr/6).
    correlation = 2.0 * math.sin(math.pi / 6.0 * _pearson(_ranks(trace.prompt), _ranks(trace.output)))
    prompt, output = sorted(trace.prompt), sorted(trace.output)
    return Lengths(
        trace.name,
        PROBABILITIES,
        tuple(round(quantile(prompt, p), 1) for p in PROBABILITIES),
        tuple(round(quantile(output, p), 1) for p in PROBABILITIES),
        round(correlation, 4),
    )


def quantile(ordered: Sequence[float], probability: float) -> float:
    """The value at a probability of ascending values, linear between neighbours."""
    place = probability * (len(ordered) - 1)
    below = min(int(place), len(ordered) - 2)
    return ordered[below] + (place - below) * (ordered[below + 1] - ordered[below])


@dataclass(frozen=True)
class FitError:
    """Sampled lengths against the trace's, relative."""

    worst_prompt: float
    """Of the quantiles in `CHECKED`; in tokens where the trace has fewer than 50."""
    worst_output: float
    mean_prompt: float
    mean_output: float
    correlation: float
    """Rank correlation of the samples minus the trace's, absolute."""


def errors(trace: Trace, table: Lengths, *, samples: int = _SAMPLES, seed: int = 1) -> FitError:
    """What the table loses."""
    rng = random.Random(seed)
    drawn = [table.draw(rng) for _ in range(samples)]
    prompts, outputs = [p for p, _ in drawn], [o for _, o in drawn]
    return FitError(
        _worst(trace.prompt, prompts),
        _worst(trace.output, outputs),
        _mean(prompts) / _mean(trace.prompt) - 1,
        _mean(outputs) / _mean(trace.output) - 1,
        _pearson(_ranks(prompts), _ranks(outputs)) - _pearson(_ranks(trace.prompt), _ranks(trace.output)),
    )


def _worst(trace: Sequence[int], samples: Sequence[int]) -> float:
    wanted, got = sorted(trace), sorted(samples)
    return max(
        (quantile(got, p) / quantile(wanted, p) - 1 for p in CHECKED if quantile(wanted, p) >= 50), key=abs, default=0.0
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _ranks(values: Sequence[int]) -> list[float]:
    """Ranks; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + end - 1) / 2
        start = end
    return ranks


def _pearson(xs: Sequence[float], ys: Sequence[float]) -> float:
    mean_x, mean_y = _mean(xs), _mean(ys)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    spread = math.sqrt(sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys))
    return covariance / spread if spread else 0.0


def write(fits: Sequence[tuple[Trace, Lengths, FitError]], out: Path) -> None:
    """The tables as a file, with where they come from and how far off they are."""
    lines = [
        "# Lengths of prompts and outputs, in tokens, at these probabilities; made by `python -m simulation.fit`.",
        "# The distributions are fitted to public traces, which are not part of this project.",
        f"probabilities = [{_numbers(PROBABILITIES)}]",
    ]
    for trace, table, error in fits:
        lines += [
            "",
            f"[lengths.{table.name}]",
            f'source = "{trace.source}"',
            f'file = "{trace.file}"',
            f'date = "{trace.date}"',
            f"rows = {len(trace.prompt)}",
            f"correlation = {table.correlation:g}",
            f"prompt = [{_numbers(table.prompt)}]",
            f"output = [{_numbers(table.output)}]",
            "",
            f"[lengths.{table.name}.errors]",
            f"prompt_worst_quantile = {error.worst_prompt:.4f}",
            f"output_worst_quantile = {error.worst_output:.4f}",
            f"prompt_mean = {error.mean_prompt:.4f}",
            f"output_mean = {error.mean_output:.4f}",
            f"rank_correlation = {error.correlation:.4f}",
        ]
    out.write_text("\n".join(lines) + "\n")


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" if value < 1e5 else f"{value:.1f}" for value in values)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m simulation.fit", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=TABLES)
    options = parser.parse_args(argv)
    fits = []
    for path in options.files:
        trace = read(path)
        table = fit(trace)
        error = errors(trace, table)
        fits.append((trace, table, error))
        sys.stdout.write(
            f"{table.name}: {len(trace.prompt)} requests; worst quantile error prompt {error.worst_prompt:+.2%}, "
            f"output {error.worst_output:+.2%}; means {error.mean_prompt:+.2%}, {error.mean_output:+.2%}; "
            f"rank correlation {error.correlation:+.3f}\n"
        )
    write(fits, options.out)


if __name__ == "__main__":
    main()
