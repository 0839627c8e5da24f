"""Metrics of the safety service. Labels are closed sets or come from packs; tenants are not labels."""

from prometheus_client import Counter, Gauge

_INPUTS = Counter("weir_safety_inputs_total", "Inputs checked by the strictest action taken.", ["action"])
INPUTS = {action: _INPUTS.labels(action or "none") for action in ("", "flag", "tokenise", "redact", "block")}
DELTAS = Counter("weir_safety_output_deltas_total", "Pieces of output fed to filters.")
FILTERS = Gauge("weir_safety_open_filters", "Output filters open over all sessions.")
INTERVENTIONS = Counter(
    "weir_safety_interventions_total", "Findings by stage, category and action.", ["stage", "category", "action"]
)
PACKS = Gauge("weir_safety_packs", "Packs compiled: one for each set of policies that requests have in common.")
PACKS_REFUSED = Counter("weir_safety_packs_refused_total", "Sets of policies that did not compile.")
POLICIES = Gauge("weir_safety_policies", "Policies that the registry holds.")
REVISION = Gauge("weir_safety_policies_revision", "Registry revision of the policies and the floor.")
