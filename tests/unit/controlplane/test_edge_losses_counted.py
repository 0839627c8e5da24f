"""Which of the requests that end badly at the edge count against availability."""

from __future__ import annotations

import pytest

from services.controlplane.policy.losses import ASKED_FOR, CALLERS, Ended, Loss, loss_of

CHAT = "/v1/chat/completions"
GENERATE = Loss("generate", "", begun=False)
BROKE = "upstream_reset_after_response_started{connection_termination}"


def ended(flags: str, details: str, route: str = CHAT, cluster: str = "gateway") -> Ended:
    return Ended(route, cluster, frozenset(flags.split(",")) - {""}, details)


@pytest.mark.parametrize(
    ("request_", "loss"),
    [
        (ended("UH", "no_healthy_upstream"), GENERATE),
        (ended("UF", "upstream_reset_before_response_started{connection_failure}"), GENERATE),
        (ended("UC", "upstream_reset_before_response_started{connection_termination}"), GENERATE),
        (ended("UO", "overflow"), GENERATE),
        (ended("NC", "cluster_not_found"), GENERATE),
        (ended("OM", "overload"), GENERATE),
        (ended("UAEX", "ext_authz_error"), GENERATE),
        (ended("UC", BROKE), Loss("generate", "", begun=True)),
        (ended("UF", "x", route="/weir.inference.v1.InferenceService/"), GENERATE),
        (ended("UF", "x", route="/v1/embeddings"), Loss("embed", "", begun=False)),
        (ended("UH", "x", "/", "prediction/digits@2"), Loss("predict", "digits@2", begun=False)),
        (ended("UC", BROKE, "/v2/", "predictor/digits@2"), Loss("predict", "digits@2", begun=False)),
        # What somebody answered counts there, also where the edge tried again first.
        (ended("", "via_upstream"), None),
        (ended("URX", "via_upstream"), None),
        (ended("UC", "via_upstream"), None),
        (ended("UR", "upstream_reset_before_response_started{remote_reset}"), None),
        # A caller's own doing.
        (ended("UAEX", "ext_authz_denied"), None),
        (ended("DC", "downstream_remote_disconnect"), None),
        (ended("DC,UC", BROKE), None),
        (ended("DPE", "http2.violation.of.messaging.rule"), None),
        (ended("RL", "request_rate_limited"), None),
        # What asks for no answer of a model.
        (ended("UF", "x", route="/v1/"), None),
        (ended("UF", "x", route="/admin/v1/", cluster="registry"), None),
        (ended("UF", "x", route=""), None),
    ],
)
def test_what_counts(request_: Ended, loss: Loss | None) -> None:
    assert loss_of(request_) == loss


def test_envoy_tells_of_nothing_that_is_only_a_callers_doing() -> None:
    assert not CALLERS & {*ASKED_FOR}
