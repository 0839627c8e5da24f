"""The torch engine beside transformers and vLLM: `make bench-engine`, or `python -m loadtest.bench_engine [--quick]`.

Makes checkpoints with random weights, sends every contestant the same requests in the same run, in turn, each in a
process of its own with two threads; measures what the engine's own bookkeeping costs, what a long prompt does to
running streams, and the way from worker to gateway. Prints tables and ends with one line of JSON. See
loadtest/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from loadtest import worker_bench
from loadtest.accounting import cpu_seconds, machine_cpu_seconds
from loadtest.engine import checkpoints, contestants, report, workloads
from loadtest.engine.child import REPOSITORY, Contestant, Order
from loadtest.overload import output
from loadtest.overload.output import say

ROOT = REPOSITORY / "build" / "bench"
FAMILIES = tuple(checkpoints.ARCHITECTURES)
PARTS = ("t", "s", *FAMILIES, "overhead", "itl", "worker")
QUIET = 0.05
"""Share of the machine that others may use before the figures carry a warning."""
BLOCK_SIZE = 16
BATCH = 32
OVERHEAD = {"do": "overhead", "batch": BATCH, "prompt": 128}
LONG_PROMPT, DECODERS = 2000, 8
INTERFERENCE = {
    "do": "interference",
    "decoders": DECODERS,
    "decoder_prompt": 64,
    "decoder_output": 400,
    "settle": 24,
    "prompt": LONG_PROMPT,
}
ITL_TARGET = 0.03
"""Seconds that the engine is asked to keep a step within."""
ITL_VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("chunked", {"max_step_tokens": 256}),
    ("unchunked", {"max_step_tokens": LONG_PROMPT + 64}),
    ("bounded", {"max_step_tokens": LONG_PROMPT + 64, "itl_target": ITL_TARGET}),
)
PROFILED_REPEATS = 3


class Bench:
    """The parts of the benchmark; each adds to `figures`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._settings = dict(options.set)
        self.figures: report.Figures = {}
        self.strangers = 0.0

    def t(self) -> None:
        """Throughput on the small checkpoint."""
        self._throughput("t", {"a": self._options.repeats, "b": self._options.repeats})

    def s(self) -> None:
        """Throughput on the larger checkpoint."""
        self._throughput("s", {"a": self._options.repeats_s, "c": self._options.repeats})

    def family(self, name: str) -> None:
        """Workload A on a checkpoint of another family."""
        self._throughput(name, {"a": self._options.repeats_s})

    def _throughput(self, checkpoint: str, repeats: dict[str, int]) -> None:
        folder, vocabulary = checkpoints.ensure(checkpoint, ROOT), checkpoints.vocabulary(checkpoint)
        ours_answers = []
        with ExitStack() as stack:
            running = self._start(stack, checkpoint, folder)
            for workload, count in repeats.items():
                answers: dict[str, list[dict[str, Any]]] = defaultdict(list)
                for repeat in range(1, count + 1):
                    items = workloads.to_json(workloads.workload(workload, repeat, vocabulary=vocabulary))
                    order = {"do": "run", "items": items}
                    for name in _rotated(list(running), repeat):
                        answers[name].append(self._ask(running[name], order))
                    progress(f"{workload} on {checkpoint}", repeat, count)
                if count:
                    self._compare(answers, checkpoint, workload)
                    ours_answers += answers["ours"]
                if workload == "b" and count:
                    self._warm_prefix(running["ours"], checkpoint, vocabulary, count)
        found = report.memory(
            ours_answers,
            block_bytes=int(self._settings.get("block_size", BLOCK_SIZE)) * checkpoints.kv_bytes_per_token(checkpoint),
        )
        suffix = "" if checkpoint == "t" else f"_{checkpoint}"
        self.figures |= {name + suffix: value for name, value in found.items()}
        say("  memory of ours, MiB: " + ", ".join(f"{name} {value / 2**20:.0f}" for name, value in found.items()))

    def _start(self, stack: ExitStack, checkpoint: str, folder: Path) -> dict[str, Contestant]:
        """Start the contestants and let each run once over short outputs, which does not count."""
        running = {
            "hf": stack.enter_context(contestants.hf(checkpoint, folder)),
            "ours": stack.enter_context(contestants.ours(checkpoint, folder, self._settings)),
        }
        skipped = self._options.no_vllm or checkpoint in FAMILIES
        vllm = None if skipped else contestants.vllm(checkpoint, folder)
        if vllm is not None:
            running["vllm"] = stack.enter_context(vllm)
        vocabulary = checkpoints.vocabulary(checkpoint)
        items = workloads.workload("a", workloads.WARM_UP_REPEAT, vocabulary=vocabulary)
        short = workloads.to_json([workloads.Item(item.prompt, min(item.output, 8)) for item in items[:32]])
        for name, contestant in running.items():
            contestant.ask({"do": "run", "items": short})
            progress(f"{name} on {checkpoint}", 0, 0)
        return running

    def _compare(self, answers: report.Answers, checkpoint: str, workload: str) -> None:
        self.figures |= report.compare(answers, checkpoint=checkpoint, workload=workload)
        say(f"\nworkload {workload.upper()} on checkpoint {checkpoint.upper()}")
        say(report.comparison_table(answers, workload=workload))

    def _warm_prefix(self, ours: Contestant, checkpoint: str, vocabulary: int, count: int) -> None:
        """Workload B once more, its common prefix in the cache before the first request arrives."""
        answers = []
        for repeat in range(count + 1, 2 * count + 1):
            items = workloads.to_json(workloads.workload("b", repeat, vocabulary=vocabulary))
            answers.append(self._ask(ours, {"do": "run", "items": items, "warm_prefix": workloads.SHARED_PREFIX}))
        found = report.compare({"ours_warm": answers}, checkpoint=checkpoint, workload="b")
        self.figures |= found
        say(report.comparison_table({"ours, prefix cached before": answers}, workload="b"))

    def overhead(self) -> None:
        """Scheduler, block manager and framing per decode step of 32 sequences on S; in a smoke run on T."""
        checkpoint = "t" if self._options.smoke else "s"
        folder = checkpoints.ensure(checkpoint, ROOT)
        order = OVERHEAD | {"vocabulary": checkpoints.vocabulary(checkpoint), "steps": self._options.steps}
        settings = {"max_running": BATCH, **self._settings}
        with contestants.ours(checkpoint, folder, settings, module="steps") as core:
            answers = [self._ask(core, order | {"repeat": repeat}) for repeat in range(1, self._options.repeats + 1)]
        found = report.overhead(answers)
        self.figures |= found
        say(f"\na decode step of {BATCH} sequences on checkpoint {checkpoint.upper()}, milliseconds")
        parts = [f"{name.removesuffix('_ms_b32_s')} {value:.3f}" for name, value in found.items() if "_ms_" in name]
        say("  " + ", ".join(parts) + f"; overhead {found['overhead_share_b32_s']:.1%} of the step")

    def itl(self) -> None:
        """Gaps between the tokens of running streams while a long prompt is computed."""
        folder = checkpoints.ensure("t", ROOT)
        say(f"\n{DECODERS} streams on checkpoint T while a prompt of {LONG_PROMPT} tokens is computed, milliseconds")
        for suffix, settings in ITL_VARIANTS:
            with contestants.ours("t", folder, {**self._settings, **settings}) as engine:
                answers = []
                for repeat in range(self._options.repeats + 1):
                    order = INTERFERENCE | {"vocabulary": checkpoints.vocabulary("t"), "repeat": repeat}
                    answers.append(self._ask(engine, order))
            found = report.interference(answers[1:], suffix=suffix)  # the first warms up
            self.figures |= found
            say("  " + ", ".join(f"{name} {value:.1f}" for name, value in found.items()))

    def worker(self) -> None:
        """CPU per token from worker to gateway."""
        found = uvloop.run(worker_bench.figures(repeats=self._options.repeats))
        self.figures |= found
        say("\nworker to gateway, CPU µs per token, engine taken off")
        say("  " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()))

    def profile(self) -> None:
        """Where the time of workload A on T goes."""
        folder, vocabulary = checkpoints.ensure("t", ROOT), checkpoints.vocabulary("t")
        runs = [
            workloads.to_json(workloads.workload("a", repeat, vocabulary=vocabulary))
            for repeat in range(PROFILED_REPEATS + 1)
        ]
        with contestants.ours("t", folder, self._settings, module="steps") as core:
            core.ask({"do": "profile", "items": [runs[0][:8]] * PROFILED_REPEATS, "top": 0})
            answer = core.ask({"do": "profile", "items": runs[1:], "top": 20})
        say(f"\nworkload A on T: {answer['seconds']:.2f} s by part of the step")
        say(report.shares(answer["parts"]))
        say(f"\nby kind of operation (torch.profiler; {answer['profiled_seconds']:.2f} s under it)")
        say(report.shares(answer["operations"]))
        say("\nPython functions by own time (cProfile, which charges torch's work to its caller)")
        say("\n".join(f"  {seconds:7.3f} s  {name}" for name, seconds in answer["functions"]))

    def _ask(self, contestant: Contestant, order: Order) -> dict[str, Any]:
        """Ask, and note how much of the machine others used meanwhile."""
        with self._watching(contestant):
            return contestant.ask(order)

    @contextlib.contextmanager
    def _watching(self, contestant: Contestant) -> Iterator[None]:
        busy, own, wall = machine_cpu_seconds(), cpu_seconds(contestant.pid), os.times().elapsed
        yield
        busy, own, wall = machine_cpu_seconds() - busy, cpu_seconds(contestant.pid) - own, os.times().elapsed - wall
        if wall > 1:  # the machine's clock has ticks of 10 ms
            share = (busy - own) / (wall * len(os.sched_getaffinity(0)))
            self.strangers = max(self.strangers, share)


def _rotated(names: list[str], by: int) -> list[str]:
    """Another order each time, so that no contestant always follows the same one."""
    by %= len(names)
    return names[by:] + names[:by]


def prioritise(nice: int) -> None:
    """Raise the priority of this session, what is started from here included.

    Where the kernel groups processes by session, niceness counts only within one, and the group has its own.
    """
    os.nice(nice)
    group = Path("/proc/self/autogroup")
    if nice and group.exists():
        group.write_text(str(nice))


def progress(what: str, done: int, of: int) -> None:
    """To standard error."""
    sys.stderr.write(f"{what}: {f'{done} of {of}' if of else 'warm'}\n")


def assignment(text: str) -> tuple[str, Any]:
    """`name=value` with a JSON value.

    :raises ValueError: it is not.
    """
    name, _, value = text.partition("=")
    return name, json.loads(value)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--repeats-s", type=int, default=1, help="of workload A on S and the families")
    parser.add_argument("--steps", type=int, default=48, help="decode steps in which the overhead is measured")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="one repeat, without workload A on S and families")
    parser.add_argument("--smoke", action="store_true", help="the overhead alone, on T: figures of no weight")
    parser.add_argument("--profile", action="store_true", help="profile workload A on T instead; no figures")
    parser.add_argument("--no-vllm", action="store_true")
    parser.add_argument("--set", action="append", type=assignment, default=[], help="a setting of the torch engine")
    parser.add_argument("--nice", type=int, default=0, help="scheduling priority, -20 to 19 (below 0: as root)")
    options = parser.parse_args()
    if options.quick or options.smoke:
        options.repeats, options.repeats_s, options.steps = 1, 0, 16
        options.only = [part for part in options.only if part not in FAMILIES]
    if options.smoke:
        options.only, options.no_vllm = ["overhead"], True
    return options


def main() -> None:
    """Measure and print."""
    options = arguments()
    output.begin()
    prioritise(options.nice)
    bench, parts = Bench(options), output.Parts()
    if options.profile:
        bench.profile()
        return
    if not options.no_vllm and contestants.vllm_interpreter() is None:
        options.no_vllm = True
        say("vLLM is left out: no environment in VLLM_ENV or build/vllm-env")
    for part in PARTS:
        if part in options.only:
            with parts.part(part):
                if part in FAMILIES:
                    bench.family(part)
                else:
                    getattr(bench, part)()
    if bench.strangers > QUIET:
        say(f"\nother processes used up to {bench.strangers:.0%} of the machine in a run: compare ratios only")
    names = sorted(bench.figures, key=lambda name: (name not in report.TARGETS, name))
    parts.figures = {name: bench.figures[name] for name in names} | {"strangers_share_max": bench.strangers}
    left_out = [name for name in report.TARGETS if report.PART_OF.get(name, "t") not in options.only]
    if options.no_vllm:
        left_out += [name for name in report.TARGETS if "vllm" in name]
    output.finish("engine", parts, report.TARGETS, left_out=left_out)


if __name__ == "__main__":
    main()
