"""Where a pool's next stream is opened, by what came of the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from libs.errors import Reason, WeirError
from services.gateway.clients.owner import OwnerStreams


class Mesh:
    """Remembers where streams were started: the address, or "ring", and the term whose owner could not serve."""

    def __init__(self, replicas: Sequence[str] = ("a:1", "b:1")) -> None:
        self.tried: list[tuple[str, str]] = []
        self.channels: list[str] = []
        self.streams = OwnerStreams(
            "fast", ring=lambda **call: self.start("ring", **call), direct=self.direct, replicas=lambda: replicas
        )

    def direct(self, address: str) -> Any:
        self.channels.append(address)
        return lambda **call: self.start(address, **call)

    def start(self, where: str, *, metadata: tuple[tuple[str, str], ...]) -> None:
        headers = dict(metadata)
        assert headers["x-weir-pool"] == "fast"
        self.tried.append((where, headers.get("x-weir-beyond", "")))

    def open(self) -> tuple[str, str]:
        self.streams.open()
        return self.tried[-1]

    def refuse(self, limit: str, reason: Reason = Reason.NOT_OWNER) -> None:
        self.streams.refused(WeirError(reason, "no", limit=limit))


def test_the_ring_leads_to_the_owner_and_is_asked_again_for_the_next_stream() -> None:
    mesh = Mesh()
    assert mesh.open() == ("ring", "")
    mesh.refuse("2a@b:1")
    assert mesh.open() == ("b:1", "")
    mesh.streams.opened(1)
    assert mesh.open() == ("ring", "")


def test_an_owner_that_cannot_be_reached_is_told_of_to_the_others() -> None:
    mesh = Mesh()
    mesh.open()
    mesh.refuse("2a@a:1")
    assert mesh.open() == ("a:1", "")
    assert mesh.open() == ("b:1", "2a")
    mesh.refuse("2a@a:1")  # its term is too young
    assert mesh.open() == ("a:1", "2a")
    assert mesh.open() == ("b:1", "2a")
    mesh.streams.opened(1)
    assert mesh.channels == ["a:1", "b:1"]
    assert mesh.open() == ("ring", "")  # what was is forgotten


def test_an_owner_that_sends_us_on_itself_does_not_serve_us_either() -> None:
    mesh = Mesh()
    mesh.open()
    mesh.refuse("2a@a:1")
    mesh.open()
    mesh.refuse("2a@b:1")
    assert mesh.open() == ("b:1", "2a")


def test_where_the_ring_leads_nowhere_every_known_process_is_tried() -> None:
    mesh = Mesh()
    assert [mesh.open()[0] for _ in range(5)] == ["ring", "a:1", "b:1", "ring", "a:1"]
    assert {beyond for _, beyond in mesh.tried} == {""}
    assert [Mesh(()).open()[0] for _ in range(2)] == ["ring", "ring"]


def test_an_owner_of_unknown_address_counts_as_out_of_reach() -> None:
    mesh = Mesh()
    mesh.open()
    mesh.refuse("2a@")
    assert mesh.open() == ("a:1", "2a")


def test_other_refusals_and_nonsense_are_failures_like_any() -> None:
    for reason, limit in ((Reason.DRAINING, "2a@b:1"), (Reason.NOT_OWNER, "nonsense"), (Reason.NOT_OWNER, "")):
        mesh = Mesh()
        mesh.open()
        mesh.refuse(limit, reason)
        assert mesh.open() == ("a:1", "")


def test_channels_are_few() -> None:
    mesh = Mesh(())
    for number in range(100):
        mesh.open()
        mesh.refuse(f"1@host:{number}")
    assert len(mesh.streams._stubs) <= 8
