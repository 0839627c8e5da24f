"""Which pages may call: what an origin is, and that the setting changes the public listeners alone."""

from __future__ import annotations

import msgspec
import pytest
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.cors.v3 import cors_pb2

from services.controlplane.policy.config import Certificate, EdgeConfig
from services.controlplane.policy.cors import CORS, is_origin
from services.controlplane.policy.edge import edge_resources
from services.controlplane.policy.names import LISTENER
from services.controlplane.policy.predictions import Prediction, Share
from services.controlplane.policy.routes import admin_routes, edge_routes
from services.controlplane.route_encoding import route_configuration

PAGES = ("https://app.example.com", "https://*.example.org:8443")
GOOD = [*PAGES, "http://localhost:3000", "http://127.0.0.1", "http://[::1]:8080", "https://*.a-b.example"]
BAD = [
    "*",
    "null",
    "",
    "https://*",
    "https://*.",
    "https://app.example.com/",
    "https://app.example.com/x",
    "app.example.com",
]
BAD += ["ftp://a.example", "https://a.*.example", "https://*a.example", "https://A.example", "https://a.example:0"]
BAD += [
    "https://a.example,https://b.example",
    "https://a b",
    "https://a.example\n",
    "https://.*",
    "https://user@a.example",
]


@pytest.mark.parametrize("origin", GOOD)
def test_an_origin_is_scheme_host_and_port_or_all_below_a_domain(origin: str) -> None:
    assert is_origin(origin)
    assert msgspec.convert({"cors": [origin]}, EdgeConfig).cors == (origin,)


@pytest.mark.parametrize("origin", BAD)
def test_what_is_no_origin_is_refused_by_the_settings(origin: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="no origin like"):
        msgspec.convert({"cors": [origin]}, EdgeConfig)


def filters_of(edge: EdgeConfig) -> dict[str, list[str]]:
    """Names of the HTTP filters by listener."""
    found = {}
    for name, each in edge_resources(edge, "")[LISTENER].items():
        manager = each["filter_chains"][0]["filters"][-1]["typed_config"]
        found[name] = [one["name"] for one in manager["http_filters"]]
    return found


def test_without_origins_nothing_is_there_and_with_them_the_public_listeners_ask_first() -> None:
    edge = EdgeConfig(http_port=0, admin_port=0, certificate=Certificate("c", "k"))
    before, after = filters_of(edge), filters_of(msgspec.structs.replace(edge, cors=PAGES))
    assert all(CORS not in names for names in before.values())
    assert after == {name: [*([CORS] if name != "edge-admin" else []), *names] for name, names in before.items()}
    assert "typed_per_filter_config" not in edge_routes(edge)["virtual_hosts"][0]


def test_the_policy_reaches_envoy_beside_the_routes_of_many_models() -> None:
    edge = EdgeConfig(cors=PAGES)
    routes = edge_routes(edge, [Prediction("fraud", (Share("fraud@1", "", 10_000),))])
    host = route_pb2.RouteConfiguration.FromString(route_configuration(routes)).virtual_hosts[0]
    policy = cors_pb2.CorsPolicy()
    assert host.typed_per_filter_config[CORS].Unpack(policy)
    exact, below = policy.allow_origin_string_match
    assert (exact.exact, below.safe_regex.regex[:9]) == (PAGES[0], "https://(")
    assert not policy.allow_credentials.value
    assert CORS not in str(admin_routes(edge))
