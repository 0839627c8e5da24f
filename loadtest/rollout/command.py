"""A drill of rollouts as a command: run, print, judge."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import uvloop

from loadtest.overload import output
from loadtest.overload.timeline import Check, verdict
from loadtest.rollout.drill import Times

Run = Callable[[Path, Sequence[str], list[str], Times, Callable[[str], None]], Coroutine[Any, Any, list[Check]]]
"""In a folder, of faults by name, with settings of the mesh; gives what was expected and whether it held."""


def command(doc: str | None, run: Run, *, names: Sequence[str], quick: Sequence[str], times: Times, legend: str) -> int:
    """The exit code: 1 when something did not hold.

    :param doc: of the drill, for `--help`.
    :param names: faults; `quick`, those of `--quick`.
    """
    options = output.options(doc).parse_args()
    output.begin(options.nice)
    with contextlib.ExitStack() as stack:
        folder = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-drill-")))
        checks = uvloop.run(run(folder, quick if options.quick else names, options.set, times, output.say))
    text, held = verdict(checks)
    output.say(f"{legend}\n\n{text}")
    return 0 if held else 1
