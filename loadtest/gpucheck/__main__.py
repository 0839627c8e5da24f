"""Checks the torch engine on this machine: its unit tests, its answers against a reference, a short bench.

For a machine with a GPU, no package index and none of this project's environment. It needs Python 3.11 or later, torch
2.11 or later, numpy and this folder. The unit tests also need pytest, hypothesis, transformers, safetensors, tokenizers
and peft, and are left out without them; the answers and the bench need nothing more. What fails is named; the last line
is JSON, and the exit status is 1 if anything failed.

    bin/gpu-check                    everything, on CUDA, in float32 and bfloat16
    bin/gpu-check --device cpu       the same on a CPU
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("units", "oracle", "bench")


def main() -> int:
    """Run what the command line asks for."""
    options = _options()
    lacking = [name for name in ("torch", "numpy") if importlib.util.find_spec(name) is None]
    if lacking:
        return _end({"check": "gpu", "failures": [f"there is no {' and no '.join(lacking)} in {sys.executable}"]})
    import torch

    result: dict[str, Any] = {
        "check": "gpu",
        "device": options.device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "failures": [],
    }
    if options.device == "cuda":
        if not torch.cuda.is_available():
            result["failures"].append("torch sees no CUDA device (--device cpu checks the CPU)")
            return _end(result)
        result["gpu"] = torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        for part in options.only:
            say(f"\n== {part}")
            try:
                {"units": _units, "oracle": _oracle, "bench": _bench}[part](options, Path(scratch), result)
            except Exception as error:  # the other parts are to run, whatever broke this one
                _fail(result, f"{part} broke: {type(error).__name__}: {error}")
    return _end(result)


def _units(options: argparse.Namespace, scratch: Path, result: dict[str, Any]) -> None:
    from loadtest.gpucheck import units

    ran = units.run(options.device, scratch, only=options.tests)
    for name in ran.failed:
        _fail(result, name)
    result["units"] = {"passed": ran.passed, "failed": len(ran.failed), "lacking": dict(ran.lacking)}
    if ran.note:
        result["units"] = {"note": ran.note}
    say(json.dumps(result["units"]))


def _oracle(options: argparse.Namespace, scratch: Path, result: dict[str, Any]) -> None:
    from loadtest.gpucheck import oracle

    found = result["oracle"] = {}
    for weights in oracle.WEIGHTS:
        for name in ("fast",) if options.quick else ("fast", "quality"):
            for case in oracle.CASES:
                size = {"count": 8, "output": 16} if options.quick else {"count": 24, "output": 24}
                one = oracle.check(
                    ROOT / "models/demo" / name, name, device=options.device, weights=weights, case=case, **size
                )
                where = f"{name}, {weights}, {case}"
                for fault in one.faults[:5]:
                    _fail(result, f"{where}: {fault}")
                found[where] = {"tokens": one.tokens, "largest": one.largest, "mean": one.mean}
                say(f"{where}: {one.tokens} tokens, off by {one.largest:.3g} at most, {one.mean:.3g} in the mean")


def _bench(options: argparse.Namespace, scratch: Path, result: dict[str, Any]) -> None:
    from loadtest.gpucheck import bench, oracle

    folder = bench.make_checkpoint(scratch / "bench", options.shape)
    found = result["bench"] = {"shape": options.shape, "batch": bench.BATCH}
    for weights in oracle.WEIGHTS:
        size = {"prompt": 16, "steps": 4} if options.quick else {"prompt": 128, "steps": 64}
        found[weights] = bench.measure(folder, device=options.device, weights=weights, **size)
        say(f"{weights}: {found[weights]}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bin/gpu-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--shape", choices=("t", "s"), help="of the bench's model: 5.5 or 107 million parameters")
    parser.add_argument("--tests", default="", help="unit tests to run, as pytest's -k")
    parser.add_argument("--quick", action="store_true", help="one model, few tokens")
    options = parser.parse_args()
    options.shape = options.shape or ("s" if options.device == "cuda" else "t")
    return options


def _fail(result: dict[str, Any], what: str) -> None:
    result["failures"].append(what)
    say(f"FAILED {what}")


def _end(result: dict[str, Any]) -> int:
    failures = result["failures"]
    say(f"\n{len(failures)} failed" if failures else "\nall that ran passed")
    say(json.dumps({**result, "ok": not failures}))
    return 1 if failures else 0


def say(text: str) -> None:
    """To standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
