"""Lists in pages that hold at one revision, selectors, and what cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.authority.operators import Grant
from libs.errors import Reason, WeirError
from libs.registry import MemoryStore, Put, RegistryView, keys
from libs.resources.kind import Role
from libs.resources.kinds import BY_PLURAL, KINDS
from services.registry.listing import MAX_OPEN, PAGE, PAGE_BYTES, Listings, kinds_called, selector
from tests.support.registry_service import put, resource, tenant
from tests.support.world import BUDGET, SLO, applied, observed

JANE = Grant("operator:jane", frozenset({Role.VIEWER}))
TENANTS = [BY_PLURAL["tenants"]]


def labelled(**labels: str) -> pb.Resource:
    return resource(tenant(), labels=labels)


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("", {}, True),
        (" , ", {}, True),
        ("team", {"team": ""}, True),
        ("team", {}, False),
        ("team=search", {"team": "search"}, True),
        ("team=search", {"team": "ads"}, False),
        ("team=", {"team": ""}, True),
        ("team=", {}, False),
        ("team!=search", {}, True),
        ("team!=search", {"team": "search"}, False),
        ("team=search, stage!=test ,reviewed", {"team": "search", "reviewed": "x"}, True),
        ("team=search,stage!=test,reviewed", {"team": "search", "reviewed": "x", "stage": "test"}, False),
    ],
)
def test_selectors(text: str, labels: dict[str, str], matches: bool) -> None:
    assert selector(text)(labelled(**labels)) is matches


@pytest.mark.parametrize("text", ["=", "!=", "=a", "!=a", "a,=b", "!", "!!"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(WeirError) as caught:
        selector(text)
    assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, "selector")


@given(st.text(max_size=12))
def test_no_selector_breaks(text: str) -> None:
    with contextlib.suppress(WeirError):
        selector(text)(labelled(a="b"))


def test_kinds_are_called_by_name_and_come_in_the_tables_order() -> None:
    assert kinds_called([]) == list(KINDS)
    assert [kind.name for kind in kinds_called(["Limits", "Tenant", "Limits"])] == ["Tenant", "Limits"]
    for wrong in ("tenants", "", "tenant", "Resource"):
        with pytest.raises(WeirError, match="no kind"):
            kinds_called(["Tenant", wrong])


class Desk:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.view = RegistryView(self.store)
        ids = itertools.count()
        self.listings = Listings(self.view, lambda: f"list{next(ids)}")

    async def put(self, *messages: Message) -> None:
        revision = await put(self.store, *messages)
        async with asyncio.timeout(5):
            await self.view.wait_until(lambda snapshot: snapshot.revision >= revision)

    def names(self, answer: pb.ListResponse) -> list[str]:
        return [each.metadata.name for each in answer.resources]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    task = asyncio.create_task(made.view.run())
    async with asyncio.timeout(20):
        await made.view.wait_ready()
        yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_all_pages_hold_at_one_revision_whatever_is_written_meanwhile(desk: Desk) -> None:
    await desk.put(*(tenant(f"t{number}") for number in range(7)))
    request, found, revisions = pb.ListRequest(page_size=3), [], set()
    while True:
        page = desk.listings.page(request, TENANTS, JANE)
        found += desk.names(page)
        revisions.add(page.revision)
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
        await desk.put(tenant("t0", display_name="changed"), tenant("t00"), tenant(f"z{len(found)}"))
    assert found == [f"t{number}" for number in range(7)]
    assert len(revisions) == 1
    assert len(desk.listings.page(pb.ListRequest(), TENANTS, JANE).resources) == 10


async def test_a_page_may_be_asked_for_again(desk: Desk) -> None:
    await desk.put(*(tenant(f"t{number}") for number in range(5)))
    first = desk.listings.page(pb.ListRequest(page_size=2), TENANTS, JANE)
    again = pb.ListRequest(page_size=2, page_token=first.next_page_token)
    assert desk.listings.page(again, TENANTS, JANE) == desk.listings.page(again, TENANTS, JANE)


async def test_tokens_that_are_not_of_this_list_are_gone(desk: Desk) -> None:
    await desk.put(*(tenant(f"t{number}") for number in range(5)))

    def gone(token: str, **more: bool) -> None:
        with pytest.raises(WeirError) as caught:
            desk.listings.page(pb.ListRequest(page_token=token, **more), TENANTS, JANE)
        assert (caught.value.reason, caught.value.limit) == (Reason.REVISION_GONE, "page_token")

    token = desk.listings.page(pb.ListRequest(page_size=2), TENANTS, JANE).next_page_token
    name = token.partition(":")[0]
    for wrong in ("other:2", name, f"{name}:", f"{name}:-1", f"{name}:x", f"{name}:{'9' * 5000}", f"{name}:²", ":"):
        gone(wrong)
    with pytest.raises(WeirError, match="list again"):
        desk.listings.page(pb.ListRequest(page_token=token), TENANTS, Grant("operator:joe", JANE.roles))
    for _ in range(MAX_OPEN):
        desk.listings.page(pb.ListRequest(page_size=2), TENANTS, JANE)
    gone(token)


async def test_a_page_has_at_most_so_many_resources_and_about_so_many_bytes(desk: Desk) -> None:
    await desk.put(*(tenant(f"t{number:04}") for number in range(PAGE + 1)))
    for size in (0, PAGE, 10**9):
        assert len(desk.listings.page(pb.ListRequest(page_size=size), TENANTS, JANE).resources) == PAGE
    large = [
        pb.SafetyPolicy(id=f"p{number}", version="1", rules=[pb.SafetyRule(pattern="x" * 400_000)])
        for number in range(6)
    ]
    giant = pb.SafetyPolicy(id="p9", version="1", rules=[pb.SafetyRule(pattern="x" * 2 * PAGE_BYTES)])
    await desk.put(*large, giant)
    request, pages = pb.ListRequest(), list[list[str]]()
    while not pages or request.page_token:
        page = desk.listings.page(request, [BY_PLURAL["safety"]], JANE)
        assert page.ByteSize() < PAGE_BYTES + 100 or len(page.resources) == 1
        pages.append(desk.names(page))
        request.page_token = page.next_page_token
    assert pages == [["p0@1", "p1@1"], ["p2@1", "p3@1"], ["p4@1", "p5@1"], ["p9@1"]]


async def test_kinds_come_in_the_order_of_what_refers_to_what(desk: Desk) -> None:
    await desk.put(*applied(), *observed(), pb.ApiKey(id="k", tenant="acme", hash=b"secret"))
    page = desk.listings.page(pb.ListRequest(), KINDS, JANE)
    kinds = [kind.name for kind in KINDS]
    shown = [(each.WhichOneof("spec") or each.WhichOneof("status")) for each in page.resources]
    assert list(dict.fromkeys(shown)) == [kind.part for kind in KINDS if kind.name != "TrustPolicy"]
    assert len(kinds) - 1 == len(set(shown))
    assert not any(each.key.hash for each in page.resources)
    secrets = desk.listings.page(pb.ListRequest(secrets=True), [BY_PLURAL["keys"]], JANE)
    assert secrets.resources[0].key.hash == b"secret"


async def test_what_others_observed_is_shown_beside_the_spec(desk: Desk) -> None:
    await desk.put(BUDGET, SLO, tenant())
    for name in ("budgets", "slos"):
        [bare] = desk.listings.page(pb.ListRequest(), [BY_PLURAL[name]], JANE).resources
        assert bare.WhichOneof("status") is None
    await desk.put(*observed())
    [budget] = desk.listings.page(pb.ListRequest(), [BY_PLURAL["budgets"]], JANE).resources
    assert (budget.budget.monthly_microusd, budget.spend.month_microusd) == (100, 70)
    [slo] = desk.listings.page(pb.ListRequest(), [BY_PLURAL["slos"]], JANE).resources
    assert (slo.slo.availability, slo.error_budget.objectives[0].consumed) == (0.999, 0.5)
    # Not the counts, which are for the controller alone.
    assert not slo.error_budget.windows


async def test_what_cannot_be_read_does_not_hide_the_rest(desk: Desk) -> None:
    await desk.put(tenant("a"), tenant("c"), SLO)
    bad = {keys.key("tenants", "b"): b"\xff", keys.key("error-budgets", "generate/*"): b"\xff"}
    mixed = {keys.key("tenants", "d"): keys.encode(tenant("other")), keys.key("tenants", "e"): b""}
    result = await desk.store.txn(puts=[Put(key, value) for key, value in (bad | mixed).items()])
    await desk.view.wait_until(lambda snapshot: snapshot.revision >= result.revision)
    assert desk.names(desk.listings.page(pb.ListRequest(), TENANTS, JANE)) == ["a", "c"]
    assert set(desk.view.snapshot.faults) == set(bad | mixed)
    assert all(desk.listings.stored(key) is None for key in bad | mixed)
    [slo] = desk.listings.page(pb.ListRequest(), [BY_PLURAL["slos"]], JANE).resources
    assert slo.WhichOneof("status") is None
