"""Metrics of the safety service. Labels are closed sets or come from packs; tenants are not labels."""

from prometheus_client import Counter, Gauge

_INPUTS = Counter("weir_safety_inputs_total", "Inputs checked by the strictest action taken.", ["action"])
INPUTS = {action: _INPUTS.labels(action or "none") for action in ("", "flag", "redact", "block")}
DELTAS = Counter("weir_safety_output_deltas_total", "Pieces of output fed to filters.")
FILTERS = Gauge("weir_safety_open_filters", "Output filters open over all sessions.")
INTERVENTIONS = Counter(
    "weir_safety_interventions_total", "Findings by stage, category and action.", ["stage", "category", "action"]
)
PACKS = Gauge("weir_safety_packs", "Packs in force.")
PACKS_REFUSED = Counter("weir_safety_packs_refused_total", "Packs from the registry that did not compile.")
PACKS_REVISION = Gauge("weir_safety_packs_revision", "Registry revision of the packs in force.")
