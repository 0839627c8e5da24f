"""A drill as a command: a mesh of the profile overload, a line for every second, and a verdict."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from loadtest.overload import drills, output
from loadtest.overload.meshes import overload_mesh
from loadtest.overload.setting import Site
from loadtest.overload.timeline import LEGEND, Check, verdict

Times = TypeVar("Times")


def watch(
    doc: str | None,
    drill: Callable[[Site, Path, Times, Callable[[str], None]], Sequence[Check]],
    *,
    full: Times,
    quick: Times,
) -> int:
    """Runs the drill with the command's options, `doc` being its help; returns the exit status, 1 when something did
    not hold."""
    options = output.options(doc).parse_args()
    output.begin(options.nice)
    with contextlib.ExitStack() as stack:
        folder = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-drill-")))
        site = stack.enter_context(overload_mesh(folder, "mesh", drills.SETTING, settings=options.set))
        checks = drill(site, folder / "runs", output.extent(options, full, quick), output.say)
    text, held = verdict(checks)
    output.say(f"{LEGEND}\n\n{text}")
    return 0 if held else 1
