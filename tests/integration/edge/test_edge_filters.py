"""Filters that a listener names and that come by themselves, with a real Envoy."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.any_pb2 import Any

from services.controlplane.policy.filters import LUA
from services.controlplane.policy.names import EDGE, EXTENSION, LISTENER
from services.controlplane.policy.subscription import Offer
from tests.support.fixtures.edge_fixtures import Edge, running_edge
from tests.support.known import CHAT, client, new_key

pytestmark = pytest.mark.asyncio

OTHER = LUA[:-1] + "2"
"""A name of the same length, so that it can take the other's place in a message."""


def publish(edge: Edge, kind: str, **resources: Any) -> None:
    """From now on these are served in the place of, or beside, those of the same type."""
    publisher = edge.plane.control.publisher
    served = publisher.current
    offers = served.offers[EDGE, ""]
    offer: Offer = offers[kind]
    changed = replace(offer, version=f"{offer.version}.t", resources={**offer.resources, **resources})
    publisher.publish(replace(served, offers={**served.offers, (EDGE, ""): {**offers, kind: changed}}))


def renamed(message: Any) -> Any:
    """With the other name of the filter."""
    assert LUA.encode() in message.value
    return Any(type_url=message.type_url, value=message.value.replace(LUA.encode(), OTHER.encode()))


async def warming(edge: Edge, listeners: int) -> None:
    """Returns once so many listeners wait for what they name."""
    async with asyncio.timeout(10):
        while (await edge.envoy.admin("/stats?filter=listener_manager.total_listeners_warming")).split()[-1] != str(
            listeners
        ):
            pass  # each look is a round trip to Envoy


async def test_a_listener_that_names_a_filter_which_is_not_there_yet_waits_and_the_one_before_it_serves(
    tmp_path: Path,
) -> None:
    """As between two control planes of different versions."""
    async with running_edge(tmp_path) as edge, client(edge) as http:
        key = new_key(edge)
        before = await edge.envoy.counters("listener_manager.listener_modified$")
        current = edge.plane.control.publisher.current.offers[EDGE, ""]
        publish(edge, LISTENER, **{"edge-http": renamed(current[LISTENER].resources["edge-http"])})
        await warming(edge, 1)
        assert (await http.post(CHAT, json={}, headers=key)).status_code == 200
        publish(edge, EXTENSION, **{OTHER: renamed(current[EXTENSION].resources[LUA])})
        await warming(edge, 0)
        after = await edge.envoy.counters("listener_manager.listener_modified$")
        assert sum(after.values()) == sum(before.values()) + 1
        assert (await http.post(CHAT, json={}, headers=key)).status_code == 200
        assert (await edge.envoy.counters(f"{OTHER}.config_reload$")) != {}
