"""From the contestants' answers to figures and tables. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.engine.checkpoints import ARCHITECTURES
from loadtest.figures import percentile, ratios, spread, table

Answers = Mapping[str, Sequence[Mapping[str, Any]]]
"""By contestant, its answers to one workload in the order of repeats; all contestants have the same repeats."""
Figures = dict[str, float]

TARGETS = {
    "tps_ratio_hf_a": "≥ 3",
    "tps_ratio_hf_b": "≥ 5",
    "ttft_ratio_hf_a": "≥ 8",
    "tps_ratio_hf_c": "≥ 1.5",
    "tps_ratio_vllm_a": "≥ 0.5",
    **{f"tps_ratio_hf_a_{family}": "≥ 3" for family in ARCHITECTURES},
    "overhead_ms_b32_s": "≤ 1",
    "overhead_share_b32_s": "≤ 0.1",
}
PART_OF = {
    "tps_ratio_hf_c": "s",
    **{f"tps_ratio_hf_a_{family}": family for family in ARCHITECTURES},
    "overhead_ms_b32_s": "overhead",
    "overhead_share_b32_s": "overhead",
}
"""Of the targets; the others are of "t"."""
OTHERS = ("hf", "vllm")


def rate(answer: Mapping[str, Any], *, outputs_only: bool) -> float:
    """Tokens per second of wall time: prompt and output, or output alone for a single stream."""
    tokens = answer["output_tokens"] + (0 if outputs_only else answer["prompt_tokens"])
    return float(tokens / answer["seconds"])


def first_token(answer: Mapping[str, Any]) -> float:
    """Median time to first token, seconds."""
    return percentile(answer["ttft"], 0.5)


def compare(answers: Answers, *, checkpoint: str, workload: str) -> Figures:
    """Rates and times to first token of every contestant, and ours against each other one.

    Ratios are medians of the ratios within a repeat, where the contestants ran one right after another. They are named
    for the workload alone where the issue of a workload is decided: A and B on T, C on S; elsewhere the checkpoint is
    in the name, behind the workload if it is of another family.
    """
    outputs_only = workload == "c"
    place = f"{checkpoint}_{workload}"
    short = workload if place in ("t_a", "t_b", "s_c") else place
    short = f"{workload}_{checkpoint}" if checkpoint in ARCHITECTURES else short
    rates = {name: [rate(each, outputs_only=outputs_only) for each in rows] for name, rows in answers.items()}
    firsts = {name: [first_token(each) for each in rows] for name, rows in answers.items()}
    figures = {f"tps_{name}_{place}": statistics.median(values) for name, values in rates.items()}
    figures |= {f"ttft_p50_s_{name}_{place}": statistics.median(values) for name, values in firsts.items()}
    for other in OTHERS:
        if other in answers and "ours" in answers:
            figures[f"tps_ratio_{other}_{short}"] = _median_ratio(rates["ours"], rates[other])
            figures[f"ttft_ratio_{other}_{short}"] = _median_ratio(firsts[other], firsts["ours"])
    return figures


def comparison_table(answers: Answers, *, workload: str) -> str:
    """One row per contestant."""
    unit = "output tokens/s" if workload == "c" else "total tokens/s"
    rows = [
        (
            name,
            spread([rate(each, outputs_only=workload == "c") for each in rows], 1),
            spread([first_token(each) for each in rows], 3),
            spread([percentile(each["ttft"], 0.99) for each in rows], 3),
        )
        for name, rows in answers.items()
    ]
    return table(("", unit, "TTFT p50, s", "TTFT p99, s"), rows)


def memory(answers: Sequence[Mapping[str, Any]], *, block_bytes: int) -> Figures:
    """KV memory configured and used at most, and how much the process grew after loading, bytes."""
    return {
        "kv_bytes_configured": max(each["blocks_total"] for each in answers) * block_bytes,
        "kv_bytes_peak": max(each["blocks_peak"] for each in answers) * block_bytes,
        "rss_growth_bytes": max(each["rss_peak"] - each["rss_loaded"] for each in answers),
    }


def interference(answers: Sequence[Mapping[str, Any]], *, suffix: str) -> Figures:
    """Percentiles of the gaps between tokens while a long prompt is computed, medians over repeats, milliseconds."""

    def median(values: Sequence[float]) -> float:
        return statistics.median(values) * 1e3

    return {
        f"itl_p99_ms_{suffix}": median([percentile(each["during"], 0.99) for each in answers]),
        f"itl_p50_ms_{suffix}": median([percentile(each["during"], 0.5) for each in answers]),
        f"itl_p99_ms_{suffix}_before": median([percentile(each["before"], 0.99) for each in answers]),
        f"long_ttft_ms_{suffix}": median([each["ttft"] for each in answers]),
    }


def overhead(answers: Sequence[Mapping[str, float]]) -> Figures:
    """What is not the model, per decode step; medians over repeats."""
    names = ("schedule", "prepare", "forward", "sample", "apply", "framing", "total")
    milliseconds = {name: statistics.median(each[name] for each in answers) * 1e3 for name in names}
    own = milliseconds["schedule"] + milliseconds["apply"] + milliseconds["framing"]
    return {
        "overhead_ms_b32_s": own,
        "overhead_share_b32_s": own / (milliseconds["total"] + milliseconds["framing"]),
        "step_ms_b32_s": milliseconds["total"],
        **{f"{name}_ms_b32_s": milliseconds[name] for name in names[:-1]},
    }


def shares(seconds: Mapping[str, float]) -> str:
    """A table of seconds by name with their shares, the largest first."""
    whole = sum(seconds.values())
    rows = [
        (name, f"{value:.3f}", f"{value / whole:.1%}")
        for name, value in sorted(seconds.items(), key=lambda item: -item[1])
    ]
    return table(("", "seconds", "share"), rows)


def _median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    return statistics.median(ratios(numerators, denominators))
