"""Pools of workers as admission and the workers tell of them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from libs.diagnosis.thresholds import QUEUE_WAIT, REFUSED_SHARE
from libs.diagnosis.window import Process, Span, Window

ASKED_FOR = ("paid", "free")
"""Classes whose callers wait. Batch and over-quota work is meant to wait for idle capacity, copies are nobody's."""
_NO_ROOM = (
    *("rejected_queue_full", "rejected_deadline", "rejected_no_capacity"),
    *("evicted_ttl", "evicted_deadline", "evicted_shed"),
)


class Worker(NamedTuple):
    """A worker over the window."""

    process: Process
    busy: float
    """Share of the time that its engine was in steps."""
    prefill: float
    """Of that, the share spent on prompts."""
    granted: Span
    """Share of its blocks that admission can grant no more; 0 while it is not known."""
    used: Span
    """Share of its blocks in use."""
    places: Span
    """Sequences that admission can still grant it."""
    inside: Span
    """Sequences that wait inside the engine."""
    running: Span
    """Sequences that run."""
    preempted: float
    """Sequences per second preempted for want of blocks."""
    cpu: float
    """Processor seconds per second."""
    versions: tuple[str, ...]
    """What it serves."""

    @property
    def filled(self) -> Span:
        """Share that is taken of its places or of its blocks, whichever is more."""
        places = [
            running / (running + free) if running + free else 0.0
            for running, free in zip(self.running, self.places, strict=True)
        ]
        return Span(max(places[0], self.granted.before), max(places[1], self.granted.after))


class Pool(NamedTuple):
    """A pool over the window."""

    name: str
    depth: Span
    """Requests that wait and somebody waits for."""
    wait: float
    """Mean wait of those that were granted, seconds."""
    refused: float
    """Share of what left admission that found no room."""
    tenants: dict[str, tuple[Span, Span]]
    """By tenant: requests that wait, and that run."""
    workers: tuple[Worker, ...]

    @property
    def pressed(self) -> bool:
        """Callers wait, at both scrapes, and feel it."""
        inside = sum(worker.inside.least for worker in self.workers)
        felt = self.wait >= QUEUE_WAIT or self.refused >= REFUSED_SHARE
        return (self.depth.least > 0 and felt) or inside > 0

    @property
    def versions(self) -> tuple[str, ...]:
        """What its workers serve."""
        return tuple(sorted({version for worker in self.workers for version in worker.versions}))


def pools(window: Window) -> list[Pool]:
    """All that admission decides for. Of several processes one is a pool's owner; the others' numbers are zero."""
    deciders = window.of("admission")
    names = {name for each in deciders for name in window.values(each, "weir_admission_queue_depth", "pool")}
    return [_pool(window, name, deciders) for name in sorted(names)]


def _pool(window: Window, name: str, deciders: list[Process]) -> Pool:
    def summed(metric: str, **labels: str) -> Span:
        spans = [window.span(each, metric, pool=name, **labels) for each in deciders]
        return Span(sum(each.before for each in spans), sum(each.after for each in spans))

    def gained(metric: str, **labels: str) -> float:
        return sum(window.gained(each, metric, pool=name, **labels) for each in deciders)

    classes = [summed("weir_admission_queue_depth", queue_class=each) for each in ASKED_FOR]
    granted = sum(gained("weir_admission_queue_wait_seconds_count", queue_class=each) for each in ASKED_FOR)
    waited = sum(gained("weir_admission_queue_wait_seconds_sum", queue_class=each) for each in ASKED_FOR)
    outcomes = "weir_admission_outcomes_total"
    left = sum(gained(outcomes, queue_class=each) for each in ASKED_FOR)
    no_room = sum(gained(outcomes, queue_class=each, outcome=outcome) for each in ASKED_FOR for outcome in _NO_ROOM)
    requests = "weir_admission_tenant_requests"
    tenants = {tenant for each in deciders for tenant in window.values(each, requests, "tenant")}
    sequences = "weir_admission_worker_free_sequences"
    members = {worker for each in deciders for worker in _members(window, each, sequences, name)}
    return Pool(
        name=name,
        depth=Span(sum(each.before for each in classes), sum(each.after for each in classes)),
        wait=waited / granted if granted else 0.0,
        refused=no_room / left if left else 0.0,
        tenants={
            each: (summed(requests, tenant=each, state="queued"), summed(requests, tenant=each, state="held"))
            for each in sorted(tenants)
        },
        workers=tuple(
            worker_of(
                window,
                each,
                free=summed("weir_admission_worker_free_blocks", worker=each.name),
                places=summed(sequences, worker=each.name),
            )
            for each in window.of("worker")
            if each.name in members
        ),
    )


def _members(window: Window, process: Process, metric: str, pool: str) -> set[str]:
    samples = window.after.pages[process].get(metric, ())
    return {sample.labels["worker"] for sample in samples if sample.labels.get("pool") == pool}


def worker_of(window: Window, process: Process, *, free: Span, places: Span) -> Worker:
    """One worker; `free` and `places` are the blocks and sequences that admission can still grant."""
    stepping = window.gained(process, "weir_worker_step_seconds_sum")
    prompts = window.gained(process, "weir_worker_prompt_tokens_total")
    prompts -= window.gained(process, "weir_worker_prefix_cache_hits_total")
    rate = window.span(process, "weir_worker_prefill_tokens_per_second").most
    used = window.span(process, "weir_worker_kv_cache_usage_perc")
    unused = window.span(process, "weir_worker_kv_cache_free_blocks")
    return Worker(
        process=process,
        busy=stepping / window.seconds,
        prefill=min(1.0, prompts / rate / stepping) if rate and stepping else 0.0,
        granted=Span(_granted(free.before, unused.before, used.before), _granted(free.after, unused.after, used.after)),
        used=used,
        places=places,
        inside=window.span(process, "weir_worker_num_requests_waiting"),
        running=window.span(process, "weir_worker_num_requests_running"),
        preempted=window.rate(process, "weir_worker_num_preemptions_total", cause="engine"),
        cpu=window.rate(process, "process_cpu_seconds_total"),
        versions=ready(window, process, "weir_worker_"),
    )


def ready(window: Window, process: Process, prefix: str) -> tuple[str, ...]:
    """The versions that a process serves, on the later scrape."""
    samples = window.after.pages[process].get(f"{prefix}model_state", ())
    return tuple(sorted(each.labels["model"] for each in samples if each.labels["state"] == "ready" and each.value))


def _granted(free: float, unused: float, used: float) -> float:
    """Blocks in all are those unused over the share that is; of a full worker nothing follows from its page, and what
    is used is granted."""
    return 1.0 - free / (unused / (1.0 - used)) if used < 1.0 and unused else used
