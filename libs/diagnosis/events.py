"""What happened between two scrapes, in words: processes that came, went or began anew, and what is counted when it
happens. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from libs.diagnosis.window import Process, Window

_COUNTED = (
    ("weir_rollout_decisions_total", "rollout of {alias}: {kind}"),
    ("weir_registry_changes_total", "registry: {action} {outcome}"),
    ("weir_controlplane_nacks_total", "{type} refused by a client"),
    ("weir_admission_workers_lost_total", "{pool} lost a worker: {cause}"),
    ("weir_worker_engine_restarts_total", "{process}: its engine was started again"),
    ("weir_worker_model_failures_total", "{process}: a version could not be loaded: {reason}"),
    ("weir_predictor_model_failures_total", "{process}: a version could not be loaded: {reason}"),
    ("weir_ratelimit_budget_alerts_total", "a tenant's budget of the {period} reached a threshold"),
    ("weir_rollout_terms_total", "{process} leads the rollouts"),
)
"""Counters, by what one more of them means: with their labels, and the process."""
_BREAKER, _OPEN = "weir_router_breaker_state", 2.0


def events(window: Window) -> tuple[str, ...]:
    """Each once, however many processes tell of it."""
    found = [*_processes(window)]
    for process in window.after.pages.keys() & window.before.pages.keys():
        for name, text in _COUNTED:
            for sample in window.after.pages[process].get(name, ()):
                gained = window.gained(process, name, **sample.labels)
                if gained > 0:
                    found.append(_said(text, process, sample.labels, gained))
        found += _breakers(window, process)
    return tuple(sorted(set(found)))


def _said(text: str, process: Process, labels: Mapping[str, str], times: float) -> str:
    said = text.format_map({**labels, "process": process.name})
    return said if times == 1 else f"{said} ({times:.0f} times)"


def _processes(window: Window) -> Iterator[str]:
    before, after = window.before, window.after
    for process in after.pages:
        if process in before.silent:
            yield f"{process.name} answers again"
        elif process in before.pages and window.restarted(process):
            yield f"{process.name} began anew"
    for process in after.silent - before.silent:
        yield f"{process.name} does not answer"


def _breakers(window: Window, process: Process) -> Iterator[str]:
    for sample in window.after.pages[process].get(_BREAKER, ()):
        before, after = window.span(process, _BREAKER, **sample.labels)
        if (before == _OPEN) != (after == _OPEN):
            version, zone = sample.labels.get("model_version", ""), sample.labels.get("zone", "")
            yield f"the breaker of {version} in {zone} {'opened' if after == _OPEN else 'lets requests through'}"
