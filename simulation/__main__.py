"""The command: `weir simulate`, or `python -m simulation`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from simulation import report
from simulation.scenario import Scenario, ScenarioError, read
from simulation.simulator import Simulator

PRESETS = Path(__file__).with_name("presets")


def presets() -> list[str]:
    """Names of the scenarios that come with it."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def scenario_of(options: argparse.Namespace) -> Scenario:
    """The scenario that was asked for, with the options' changes.

    :raises ScenarioError: it cannot be read or makes no sense.
    """
    path = options.file or PRESETS / f"{options.preset or 'overload'}.toml"
    scenario = read(path)
    cluster = scenario.cluster
    if options.workers is not None:
        cluster = msgspec.structs.replace(cluster, workers=options.workers)
    admission = dict(scenario.admission)
    if options.discipline is not None:
        admission["discipline"] = options.discipline
    seconds = scenario.seconds if options.seconds is None else options.seconds
    scenario = msgspec.structs.replace(
        scenario,
        cluster=cluster,
        admission=admission,
        seconds=seconds,
        warmup=min(scenario.warmup, seconds / 4),
        seed=scenario.seed if options.seed is None else options.seed,
        scale=scenario.scale if options.load is None else scenario.scale * options.load,
    )
    if options.rate is not None:
        offered = sum(load.rate for load in scenario.loads())
        if not offered:
            raise ScenarioError("--rate changes open loops, of which the scenario has none")
        scenario = msgspec.structs.replace(scenario, scale=scenario.scale * options.rate / offered)
    scenario.check()
    return scenario


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="weir simulate",
        description="Run the mesh's limiter and admission over modelled workers. Everything printed is a simulation.",
    )
    which = made.add_mutually_exclusive_group()
    which.add_argument("file", nargs="?", type=Path, help="a scenario (simulation/README.md)")
    which.add_argument("--preset", choices=presets(), help="one that comes with it; overload if nothing is said")
    made.add_argument("--workers", type=int, help="instead of the scenario's; loads that are shares grow with them")
    made.add_argument("--rate", type=float, help="requests per second in all, before steps, bursts and floods")
    made.add_argument("--load", type=float, help="all rates times this")
    made.add_argument("--seconds", type=float, help="how long requests come")
    made.add_argument("--seed", type=int, help="another one, another run")
    made.add_argument("--discipline", choices=("fair", "fifo"), help="fifo: a plain bounded queue, to compare with")
    made.add_argument("--timeline", action="store_true", help="second by second too")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a scenario and prints what it comes to; the exit code, which is 1 where a promise was not kept."""
    options = parser().parse_args(argv)
    try:
        scenario = scenario_of(options)
        simulator = Simulator(scenario)
    except ScenarioError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    began = time.process_time()
    observed = simulator.run()
    spent = time.process_time() - began
    told = report.summarise(scenario, observed, timeline=options.timeline)
    if options.json:
        told["cpu_seconds"] = round(spent, 3)
        told["requests_per_cpu_second"] = round(len(observed.outcomes) / max(spent, 1e-9))
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    else:
        rate = len(observed.outcomes) / max(spent, 1e-9)
        sys.stdout.write(f"{report.render(told)}\n{spent:.1f} s of CPU, {rate:.0f} requests per second of it\n")
    faults = report.broken(told)
    sys.stderr.writelines(f"error: {fault}\n" for fault in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
