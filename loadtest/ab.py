"""Compares two ways to run the mesh, window by window in turn: what a switch or a commit costs or saves at one and the
same hour.

    python -m loadtest.ab --b gateway.lazy_seconds=0.01
    python -m loadtest.ab --a-root ../weir-before      # another checkout, by the packages of this one
    python -m loadtest.ab --b-env GRPC_EXPERIMENTS=-event_engine_client,-event_engine_listener --repeats 8

Two meshes (profile "bench", see loadtest.mesh) run at once, A as it is unless told otherwise; the load goes to one of
them at a time, A first in one pair of windows and B first in the next. Figures are medians over pairs of B ÷ A, with
their range: a switch that is said to pay should do so in nearly every pair.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import uvloop

from loadtest import added_ttft
from loadtest.figures import percentile, ratios, spread, table
from loadtest.overload import output
from loadtest.overload.output import progress, say
from loadtest.ready import edge_of, ready
from loadtest.scenarios import (
    CONNECTIONS,
    FLAT_STREAMS,
    FLAT_TOKENS,
    REQUEST_TOKENS,
    Cost,
    Edge,
    EdgeSender,
    cost_table,
    open_loop,
    requests_closed_loop,
    tokens_closed_loop,
)
from tests.support.mesh import ROOT, Mesh

Window = Callable[[Edge, float, int], Awaitable[tuple[dict[str, float], Cost | None]]]
"""A load on a mesh for so many seconds, of the pair with this number; what was measured, by name, and what each process
spent."""


async def c64(edge: Edge, seconds: float, pair: int) -> tuple[dict[str, float], Cost]:
    """Requests that are not streamed, 64 connections."""
    cost = await requests_closed_loop(edge, connections=CONNECTIONS, seconds=seconds, max_tokens=REQUEST_TOKENS)
    return {"cpu_ms_per_request_c64": cost.cpu_per_unit * 1e3, "requests_per_s": cost.rate}, cost


async def flat(edge: Edge, seconds: float, pair: int) -> tuple[dict[str, float], Cost]:
    """Streams back to back, as fast as they go."""
    cost = await tokens_closed_loop(edge, streams=FLAT_STREAMS, seconds=seconds, max_tokens=FLAT_TOKENS)
    return {"cpu_us_per_token_flat": cost.cpu_per_unit * 1e6, "tokens_per_s": cost.rate}, cost


async def ttft(edge: Edge, seconds: float, pair: int) -> tuple[dict[str, float], None]:
    """Streamed requests at 50 a second, Poisson, the same ones for both of a pair."""
    sender = EdgeSender(edge, max_tokens=added_ttft.TOKENS)
    try:
        times = await open_loop(sender, rate=added_ttft.RATE, seconds=seconds, seed=pair)
    finally:
        sender.close()
    return {f"ttft_ms_p{q * 100:.0f}_r50": percentile(times, q) * 1e3 for q in (0.5, 0.99)}, None


WINDOWS: Mapping[str, Window] = {"c64": c64, "flat": flat, "ttft": ttft}


async def compare(
    a: Mesh, b: Mesh, *, only: Sequence[str], pairs: int, seconds: float
) -> dict[str, list[tuple[float, float]]]:
    """What was measured by name: A and B, a pair each time. Prints what each process spent."""
    edges = [edge_of(mesh, await ready(mesh)) for mesh in (a, b)]
    measured: dict[str, list[tuple[float, float]]] = {}
    for name in only:
        costs: tuple[list[Cost], list[Cost]] = ([], [])
        for pair in range(pairs):
            found: list[dict[str, float]] = [{}, {}]
            for side in (0, 1) if pair % 2 == 0 else (1, 0):
                found[side], cost = await WINDOWS[name](edges[side], seconds, pair)
                costs[side].extend([] if cost is None else [cost])
            for figure, value in found[0].items():
                measured.setdefault(figure, []).append((value, found[1][figure]))
            said = ", ".join(f"{figure} {value:.3g} | {found[1][figure]:.3g}" for figure, value in found[0].items())
            progress(f"{name} {pair + 1}: {said}")
        for letter, spent in zip("AB", costs, strict=True):
            if spent:
                say(cost_table(spent, scale=1e6, unit=f"{name}, {letter}: µs"))
    return measured


def rows(measured: Mapping[str, Sequence[tuple[float, float]]]) -> list[tuple[str, str, str, str, str]]:
    """A line per figure: its name, A, B, B ÷ A, and in how many of the pairs B was lower."""
    return [
        (
            name,
            *(spread([pair[side] for pair in pairs]) for side in (0, 1)),
            spread(_ratios(pairs), 3),
            f"{sum(later < first for first, later in pairs)} of {len(pairs)}",
        )
        for name, pairs in measured.items()
    ]


def _ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    first, later = zip(*pairs, strict=True)
    return ratios(later, first)


@contextlib.contextmanager
def _variables(said: Sequence[str]) -> Iterator[None]:
    """These in the environment: a mesh's processes get that of its `weir up`."""
    before = dict(os.environ)
    os.environ.update(each.split("=", 1) for each in said)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for side in ("a", "b"):
        parser.add_argument(f"--{side}", action="append", default=[], help="as `weir up --set`", metavar="NAME.FIELD=…")
        parser.add_argument(f"--{side}-env", action="append", default=[], help="a variable", metavar="NAME=VALUE")
        parser.add_argument(f"--{side}-root", type=Path, default=ROOT, help="a checkout (default: this one)")
    parser.add_argument("--only", nargs="+", choices=WINDOWS, default=list(WINDOWS))
    parser.add_argument("--repeats", type=int, default=6, help="pairs of windows")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a window")
    return parser.parse_args()


def main() -> None:
    """Compare and print."""
    options, parts = arguments(), output.Parts()
    output.begin()
    with parts.part("ab"), contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-ab-")))
        meshes = []
        for side, settings, variables, root in (
            ("a", options.a, options.a_env, options.a_root.resolve()),
            ("b", options.b, options.b_env, options.b_root.resolve()),
        ):
            with _variables(variables):
                mesh = Mesh(folder / side, profile="bench", settings=tuple(settings), root=root)
                meshes.append(stack.enter_context(mesh))
        measured = uvloop.run(compare(*meshes, only=options.only, pairs=options.repeats, seconds=options.seconds))
        say(table(("", "A", "B", "B ÷ A", "B lower in"), rows(measured)))
        parts.figures |= {f"{name}_ratio": statistics.median(_ratios(pairs)) for name, pairs in measured.items()}
    conditions = {
        "a": [*options.a, *options.a_env, options.a_root.resolve().name],
        "b": [*options.b, *options.b_env, options.b_root.resolve().name],
    }
    output.finish("ab", parts, {}, conditions)


if __name__ == "__main__":
    main()
