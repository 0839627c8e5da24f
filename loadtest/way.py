"""How much code the gateway has, and how much of it one chat crosses: `python -m loadtest.way`.

A streamed chat goes through a gateway among scripted leaves, in this process; the files of `services/gateway` in which
a function is entered between its arrival and its audit record are its way. Prints them and ends with one line of JSON.
Lines are those that are not blank.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from tests.support.leaves import rig
from tests.support.mesh import ROOT
from tests.support.native_stream import ids, taken
from tests.support.openai_call import chat
from tests.support.tokenizer import write_byte_tokenizer

GATEWAY = ROOT / "services" / "gateway"
PARTS = ("clients", "outcomes", "policy", "shadow", "text")
"""Packages with one job each, behind a port or pure: what is crossed of them is told apart from the way itself."""


def lines(files: Iterable[Path]) -> int:
    """Their lines that are not blank."""
    return sum(bool(line.strip()) for path in files for line in path.read_text(encoding="utf-8").splitlines())


async def crossed() -> list[Path]:
    """The files that one chat crosses, relative to the gateway's folder."""
    found: set[str] = set()

    def entered(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    with tempfile.TemporaryDirectory(prefix="weir-way-") as folder:
        model = Path(folder) / "model"
        model.mkdir()
        async with rig(write_byte_tokenizer(model), Path(folder) / "state") as mesh:
            for profile in (None, entered):  # the first chat opens streams and fills caches
                sys.setprofile(profile)
                asking = asyncio.ensure_future(chat(mesh, stream=True))
                running = await taken(mesh.workers[0])
                await running.tokens(ids("y"))
                await running.last(ids("o"))
                text = (await asking).text
                await mesh.records.get()
                sys.setprofile(None)
                if text != "yo":
                    raise RuntimeError(f"not the answer that was given: {text!r}")
    paths = [Path(name) for name in sorted(found)]
    return [path.relative_to(GATEWAY) for path in paths if path.is_relative_to(GATEWAY)]


async def measure() -> dict[str, float]:
    """The figures."""
    return figures(await crossed())


def figures(way: Iterable[Path]) -> dict[str, float]:
    """Lines of the whole gateway; files and lines of a way, outside its parts and with them."""
    way = list(way)
    core = [path for path in way if path.parts[0] not in PARTS]
    return {
        "gateway_lines": lines(GATEWAY.rglob("*.py")),
        "chat_files": len(core),
        "chat_lines": lines(GATEWAY / path for path in core),
        "chat_files_with_parts": len(way),
        "chat_lines_with_parts": lines(GATEWAY / path for path in way),
    }


def main() -> None:
    """Count and print."""
    way = asyncio.run(crossed())
    for path in way:
        sys.stdout.write(f"{lines([GATEWAY / path]):6}  {path}\n")
    sys.stdout.write(json.dumps({"figures": figures(way)}) + "\n")


if __name__ == "__main__":
    main()
