"""Where the CPU of the mesh's Python processes goes, by py-spy: sampled while a load runs, summed by function.

py-spy sees Python frames only. Time inside gRPC's Cython and C core shows as the frame that called it: `Runner.run` is
the event loop with everything that gRPC does in its callbacks. gRPC's C++ threads do not show at all, and its
completion-queue thread, which waits in native code, would always look busy: it is left out (by the kernel's clocks it
takes 5 to 15% of a process). Sampled without stopping the processes; their figures are disturbed all the same.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from libs.supervisor.leash import leashed

RATE = 100  # samples per second
_PY_SPY = Path(sys.prefix) / "bin" / "py-spy"
_LINE = re.compile(r":\d+\)$")
_POLLER = re.compile(r"Thread\.run \(threading\.py:\d+\)$")
_SETTLE = 4.0  # seconds of load before the first sample
IDLE = 5.0  # percent of one core; below, a process is not worth a table


@dataclass(frozen=True, slots=True)
class Profile:
    """Shares of the samples of one process, 0 to 1, by "function (file)"."""

    samples: int
    own: Mapping[str, float]
    """With the function on top of the stack."""
    total: Mapping[str, float]
    """With the function anywhere on the stack."""


def parse(text: str) -> Profile:
    """py-spy's "raw" format: `outer;…;inner count` a line, frames as `function (file:line)`."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    samples = 0
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        if _POLLER.search(stack):
            continue
        frames = [_LINE.sub(")", frame) for frame in stack.split(";")]
        samples += int(count)
        own[frames[-1]] += int(count)
        for frame in set(frames):
            total[frame] += int(count)
    return Profile(samples, _shares(own, samples), _shares(total, samples))


def _shares(counts: Counter[str], samples: int) -> dict[str, float]:
    return {name: count / samples for name, count in counts.most_common()}


async def record(pids: Mapping[str, int], *, seconds: float, folder: Path) -> dict[str, Profile]:
    """Sample these processes for so long, all at once; raw files stay in the folder, which must exist.

    :raises RuntimeError: py-spy failed, for want of permission perhaps.
    """

    async def one(name: str, pid: int) -> tuple[str, Profile]:
        path = folder / f"{name}.raw"
        options = ("-d", str(int(seconds)), "-r", str(RATE), "-f", "raw", "--nonblocking", "-o", str(path))
        process = await asyncio.create_subprocess_exec(
            *leashed(str(_PY_SPY), "record", "-p", str(pid), *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        if process.returncode or not path.is_file():
            raise RuntimeError(f"py-spy on {name}: {output.decode(errors='replace')[-500:]}")
        return name, parse(path.read_text())

    return dict(await asyncio.gather(*(one(name, pid) for name, pid in pids.items())))


async def under(
    load: Callable[[float], Awaitable[object]], pids: Mapping[str, int], *, seconds: float, folder: Path
) -> str:
    """Tables of the processes that are not idle while a load runs for so long, most CPU first. The folder exists."""
    running = asyncio.ensure_future(load(seconds + _SETTLE))
    await asyncio.sleep(_SETTLE)
    profiles = await record(pids, seconds=seconds, folder=folder)
    await running
    busy = [each for each in profiles.items() if each[1].samples > seconds * RATE * IDLE / 100]
    return "\n".join(render(*each, seconds=seconds) for each in sorted(busy, key=lambda each: -each[1].samples))


def render(name: str, profile: Profile, *, seconds: float, top: int = 15) -> str:
    """The functions that a process spends itself in, most first."""
    busy = 100 * profile.samples / (seconds * RATE)
    lines = [f"  {name}: {profile.samples} samples, {busy:.0f}% of a core (own, with callees)"]
    lines += [
        f"    {share:6.1%} {profile.total[function]:6.1%}  {function}"
        for function, share in list(profile.own.items())[:top]
    ]
    return "\n".join(lines)
