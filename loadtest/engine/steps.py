"""What the steps of the torch engine are made of: its core is driven step by step, without a thread or a loop.

`overhead` times the parts of decode steps of a full batch and what the worker makes of them, up to the bytes of the
frame that goes to the gateway; `profile` says where the time of a whole workload goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import dataclasses
import json
import pstats
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weir.worker.v1 import worker_pb2

from libs.clock import SystemClock
from libs.deadlines import to_duration
from loadtest.engine import child, workloads
from loadtest.engine.ours import MODEL, request, settings
from services.worker.convert import asked_of, step_frame
from services.worker.engines.port import EngineInfo, SequenceRequest, StepOutput
from services.worker.engines.torch_engine import TorchCore
from services.worker.hub import Hub, Mailbox

PARTS = ("schedule", "prepare", "forward", "sample", "apply")
"""What `TorchCore.timings` tells of the latest step, in seconds."""
OPERATIONS = {
    "linear layers": ("aten::addmm", "aten::mm", "aten::bmm", "aten::_int_mm", "aten::_weight_int8pack_mm", "mkldnn"),
    "attention": ("aten::_scaled_dot_product", "aten::_flash_attention", "aten::_softmax", "aten::baddbmm"),
    "reading and writing the KV memory": ("aten::index", "aten::gather", "aten::scatter", "aten::take"),
    "sampling": ("aten::argmax", "aten::topk", "aten::sort", "aten::_log_softmax", "aten::cumsum", "aten::max"),
    "copies and new tensors": ("aten::copy_", "aten::cat", "aten::empty", "aten::fill_", "aten::zero_", "aten::clone"),
}
"""Names of torch's operations, or how they begin; what is not listed is element-wise arithmetic and views."""


def timings(core: TorchCore) -> dict[str, float]:
    """Seconds of the latest step by part.

    :raises RuntimeError: this engine does not tell.
    """
    found: Any = getattr(core, "timings", None)
    if found is None:
        raise RuntimeError("the torch engine does not tell the timings of its steps")
    known: Mapping[str, float] = found if isinstance(found, Mapping) else dataclasses.asdict(found)
    return {part: known[part] for part in PARTS}


class HubEngine:
    """As much of the engine port as the hub needs to submit to a core that somebody else steps."""

    def __init__(self, core: TorchCore) -> None:
        self._core = core

    @property
    def info(self) -> EngineInfo:
        """The core's."""
        return self._core.info

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """Straight into the core."""
        self._core.add(requests)


def submission(number: int, prompt: Sequence[int], output: int) -> worker_pb2.Submit:
    """What a gateway would send."""
    return worker_pb2.Submit(
        handle=number,
        request_id=f"r{number}",
        model_version=MODEL,
        prompt=prompt,
        remaining=to_duration(3600),
        sampling=worker_pb2.Sampling(max_tokens=output, ignore_eos=True),
    )


def framing(hub: Hub, mailbox: Mailbox, output: StepOutput) -> float:
    """Seconds from a step's output to the bytes of its frame."""
    start = time.perf_counter()
    hub.on_step(output)
    step_frame(mailbox.outbox.take()).SerializeToString()
    return time.perf_counter() - start


def overhead(core: TorchCore, order: child.Order) -> child.Answer:
    """Medians over decode steps of a full batch, in seconds, by part; `framing` is the worker's, `total` is the wall
    time of the engine's step."""
    rng = random.Random(f"overhead {order['repeat']}")
    batch, steps = order["batch"], order["steps"]
    hub, mailbox = Hub(clock=SystemClock(), max_unread_tokens=1 << 20), Mailbox(on_overrun=lambda: None)
    hub.attach(HubEngine(core))  # type: ignore[arg-type]
    submits = [
        submission(number, workloads.ids(rng, order["prompt"], order["vocabulary"]), steps + 8)
        for number in range(1, batch + 1)
    ]
    hub.submit(mailbox, [(submit, asked_of(submit)) for submit in submits], tenant="bench")
    waiting_for_first = set(mailbox.handles.values())
    while waiting_for_first:
        output = core.step()
        waiting_for_first.difference_update(output.handles)
        framing(hub, mailbox, output)
    rows: list[dict[str, float]] = []
    while core.has_work():
        start = time.perf_counter()
        output = core.step()
        total = time.perf_counter() - start
        parts = timings(core)
        frame = framing(hub, mailbox, output)
        if len(output.handles) == batch and not any(output.finish):
            rows.append({**parts, "total": total, "framing": frame})
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]} | {"steps": len(rows)}


def profile(core: TorchCore, order: child.Order) -> child.Answer:
    """Where a workload's time goes, three ways, each in a run of its own: seconds by part of the step, seconds by kind
    of torch operation (`torch.profiler`), and Python functions by own time (`cProfile`)."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    parts, seconds = _parts(core, order["items"][0])
    with torch_profile(activities=[ProfilerActivity.CPU]) as operations:
        profiled_seconds = _drain(core, order["items"][1])
    kinds: dict[str, float] = defaultdict(float)
    for event in operations.key_averages():
        kinds[kind_of(event.key)] += event.self_cpu_time_total / 1e6
    functions = cProfile.Profile()
    functions.runcall(_drain, core, order["items"][2])
    kinds["attention, compiled"] = _own_seconds(functions, "attention_compiled.py")
    kinds["Python and dispatch"] = profiled_seconds - sum(kinds.values())
    return {
        "seconds": seconds,
        "parts": parts,
        "profiled_seconds": profiled_seconds,
        "operations": dict(kinds),
        "functions": _top(functions, order["top"]),
    }


def kind_of(operation: str) -> str:
    """The kind of a torch operation by its name."""
    for kind, names in OPERATIONS.items():
        if operation.startswith(names):
            return kind
    return "element-wise arithmetic and views" if operation.startswith("aten::") else "other operations"


def _add(core: TorchCore, items: Sequence[Mapping[str, Any]]) -> None:
    core.add([request(number, item["prompt"], item["output"]) for number, item in enumerate(items, start=1)])


def _parts(core: TorchCore, items: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], float]:
    _add(core, items)
    found: Counter[str] = Counter()
    start = time.perf_counter()
    while core.has_work():
        core.step()
        found.update(timings(core))
    seconds = time.perf_counter() - start
    return {**found, "the rest": seconds - sum(found.values())}, seconds


def _drain(core: TorchCore, items: Sequence[Mapping[str, Any]]) -> float:
    _add(core, items)
    start = time.perf_counter()
    while core.has_work():
        core.step()
    return time.perf_counter() - start


def _own_seconds(functions: cProfile.Profile, file: str) -> float:
    """What the functions of a file used themselves: compiled code is none of torch's operations."""
    stats = pstats.Stats(functions).stats  # type: ignore[attr-defined]
    return sum(own for (path, _, _), (_, _, own, _, _) in stats.items() if Path(path).name == file)


def _top(functions: cProfile.Profile, count: int) -> list[tuple[str, float]]:
    rows = [
        (f"{Path(file).name}:{line} {name}" if line else name, own)
        for (file, line, name), (_, _, own, _, _) in pstats.Stats(functions).stats.items()  # type: ignore[attr-defined]
    ]
    return sorted(rows, key=lambda row: -row[1])[:count]


async def main() -> None:
    """Serve orders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--options", type=json.loads, default={}, help="TorchSettings as JSON")
    out = child.answers()
    arguments = parser.parse_args()
    core = TorchCore(settings(arguments.folder, arguments.options), clock=SystemClock())
    core.load()
    # The hub's wake-ups belong to a running loop; nothing here waits for one.
    child.serve(out, lambda order: {"overhead": overhead, "profile": profile}[order["do"]](core, order))
    core.close()


if __name__ == "__main__":
    asyncio.run(main())
