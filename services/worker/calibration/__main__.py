"""`python -m services.worker.calibration`: calibrates against the torch engine. `weir calibrate` runs this."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import TextIO

import msgspec

from libs.clock import SystemClock
from services.worker.calibration import report
from services.worker.calibration.calibrate import Plan, Result, calibrate
from services.worker.calibration.fit import FitError
from services.worker.calibration.measure import MeasurementError, Stepper
from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine import TorchSettings
from services.worker.engines.torch_engine.config import load_config
from services.worker.engines.torch_engine.engine import TorchCore
from services.worker.model_files import ModelFiles

_FOLDER = "deploy/calibration"
_FAULTS = (EngineLoadError, MeasurementError, FitError, OSError)


class CpuClock(SystemClock):
    """Time that this process computes. With one thread that is what a step takes on a quiet machine, also on one that
    is busy with other things."""

    def monotonic(self) -> float:
        """Seconds of the process, on all cores."""
        return time.process_time()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    parser = _arguments()
    asked = parser.parse_args(argv)
    if asked.clock == "cpu" and (asked.threads != 1 or asked.device == "cuda"):
        parser.error("--clock cpu adds up the time of all threads: it goes with --threads 1 and no accelerator")
    if asked.clock == "cpu":
        asked.device = "cpu"
    say = (lambda _: None) if asked.json else (lambda line: _write(sys.stderr, line))
    folder = Path(asked.model)
    try:
        name = _name(folder)
        config = load_config(ModelFiles(folder))
        sizes = report.Sizes(
            block_size=asked.block_size,
            total_blocks=asked.total_blocks,
            max_running=asked.max_running,
            max_step_tokens=asked.max_step_tokens,
            max_context=min(config.context, asked.total_blocks * asked.block_size),
        )
        plan = Plan(model=name, vocabulary=config.vocabulary, sizes=sizes, rounds=asked.rounds)

        @contextlib.contextmanager
        def open_engine(max_step_tokens: int) -> Iterator[Stepper]:
            core = TorchCore(
                TorchSettings(
                    models={name: folder},
                    block_size=sizes.block_size,
                    total_blocks=sizes.total_blocks,
                    max_running=sizes.max_running,
                    max_step_tokens=max_step_tokens,
                    threads=asked.threads,
                    weights=asked.weights,
                    device=asked.device,
                    require_manifest=False,
                ),
                clock=CpuClock() if asked.clock == "cpu" else SystemClock(),
            )
            try:
                core.load()
                yield core
            finally:
                core.close()

        result = calibrate(open_engine, plan, say=say)
        found = report.Calibration(
            source=_source(folder, name, asked),
            sizes=sizes,
            costs=report.Costs.of(result.costs),
            errors=result.errors,
        )
        out = Path(asked.out or f"{_FOLDER}/{name.partition('@')[0]}.toml")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(report.text(found), encoding="utf-8")
    except _FAULTS as error:
        _write(sys.stderr, f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    if asked.json:
        _write(
            sys.stdout,
            json.dumps({**msgspec.to_builtins(found), "steps": len(result.steps), "file": str(out)}, indent=2),
        )
    else:
        _write(sys.stdout, _words(found, result, out))
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weir calibrate", description="Measure what a step of the torch engine takes."
    )
    defaults = TorchSettings(models={})
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", default="")
    parser.add_argument("--threads", type=int, default=defaults.threads)
    parser.add_argument("--rounds", type=int, default=Plan.__dataclass_fields__["rounds"].default)
    for size in ("block_size", "total_blocks", "max_running", "max_step_tokens"):
        parser.add_argument(f"--{size.replace('_', '-')}", type=int, default=getattr(defaults, size))
    parser.add_argument("--weights", choices=("float32", "bfloat16", "int8"), default=defaults.weights)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default=defaults.device)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--json", action="store_true")
    return parser


def _write(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


def _name(folder: Path) -> str:
    """The version that the folder's manifest gives, or the folder's name."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        return f"{manifest['name']}@{manifest['version']}"
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return f"{folder.resolve().name}@1"


def _source(folder: Path, name: str, asked: argparse.Namespace) -> report.Source:
    import torch

    cuda = asked.device == "cuda" or (asked.device == "auto" and torch.cuda.is_available())
    return report.Source(
        engine="torch",
        model=name,
        parameters=_parameters(folder),
        weights=asked.weights,
        machine=torch.cuda.get_device_name() if cuda else f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        software=f"torch {torch.__version__}",
        threads=asked.threads,
        clock=asked.clock,
        measured=datetime.now(UTC).date().isoformat(),
    )


def _parameters(folder: Path) -> int:
    """Numbers in the checkpoint, out of the headers of its safetensors files."""
    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        count += sum(prod(entry["shape"]) for key, entry in header.items() if key != "__metadata__")
    return count


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _words(found: report.Calibration, result: Result, out: Path) -> str:
    """What was found, for people."""
    source, costs, errors = found.source, result.costs, found.errors
    rows = [
        ("each step", _time(costs.step_base)),
        ("each decoding sequence", _time(costs.step_per_sequence)),
        ("each token it attends to", _time(costs.step_per_context_token)),
        ("each padded to the longest", _time(costs.step_per_padded_token)),
        ("each prompt in the step", _time(costs.step_per_prompt)),
        ("each prompt token", _time(1 / costs.prefill_tokens_per_second)),
        ("each token it attends to", _time(costs.prefill_per_attended_token)),
    ]
    judged = [
        ("steps that were fitted", f"median {errors.fit_median:.1%}, p90 {errors.fit_p90:.1%}"),
        ("steps of a mixed workload", f"median {errors.step_median:.1%}, p90 {errors.step_p90:.1%}"),
        ("its time to first token", f"p50 {errors.ttft_p50:+.1%}, p90 {errors.ttft_p90:+.1%}"),
        ("its whole duration", f"{errors.total:+.1%} (measured again, it varies by {errors.repeat_total:.1%})"),
    ]
    parameters = f"{source.parameters / 1e6:.1f} M parameters"
    clock = ", CPU time" if source.clock == "cpu" else ""
    head = f"{source.model} ({parameters}, {source.weights}) on {source.software}, threads {source.threads}"
    lines = [head, f"{source.machine}{clock}; {len(result.steps)} kinds of step", "", "A step takes:"]
    lines += [f"  {name:<28}{value}" for name, value in rows]
    lines += ["", "The simulation is off by:"]
    lines += [f"  {name:<28}{value}" for name, value in judged]
    lines += ["", f"Written to {out}. To simulate what was measured:", "  weir up --profile simulated \\"]
    lines.append(" \\\n".join(f"    --set {option}" for option in report.settings(found, str(out))))
    return "\n".join(lines)


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "nothing"


if __name__ == "__main__":
    sys.exit(main())
