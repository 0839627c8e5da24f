"""`weir calibrate`: what a step of the torch engine takes on this machine, for the simulated engine to spend.

The measurement belongs to the worker and runs in a process of its own: this one imports neither torch nor a service.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.output import Json, failures

MODULE = "services.worker.calibration"


def calibrate(
    model: Annotated[
        Path, typer.Option(help="Folder of a checkpoint (config.json, *.safetensors).", exists=True, file_okay=False)
    ],
    out: Annotated[Path | None, typer.Option(help="The file to write; deploy/calibration/NAME.toml if none.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="torch's threads for one operation.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="How often each step is measured.")] = 3,
    clock: Annotated[str, typer.Option(help="wall, or cpu on a machine that does other things (one thread).")] = "wall",
    weights: Annotated[str, typer.Option(help="float32, bfloat16 or int8.")] = "float32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    total_blocks: Annotated[int, typer.Option(min=1, help="KV blocks of the measured engine.")] = 1024,
    max_running: Annotated[int, typer.Option(min=1, help="Sequences it runs at once.")] = 32,
    max_step_tokens: Annotated[int, typer.Option(min=1, help="Most tokens it computes in one step.")] = 256,
    as_json: Json = False,
) -> None:
    """Measure the torch engine and fit the simulated engine's costs to it."""
    argv = [
        *("--model", str(model)),
        *("--threads", str(threads)),
        *("--rounds", str(rounds)),
        *("--clock", clock),
        *("--weights", weights),
        *("--device", device),
        *("--total-blocks", str(total_blocks)),
        *("--max-running", str(max_running)),
        *("--max-step-tokens", str(max_step_tokens)),
    ]
    if out is not None:
        argv += ["--out", str(out)]
    if as_json:
        argv.append("--json")
    with failures():
        code = subprocess.run([sys.executable, "-m", MODULE, *argv], check=False).returncode
    if code:
        raise typer.Exit(code)
