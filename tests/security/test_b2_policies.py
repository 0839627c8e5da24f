"""Safety policies add up and none loosens another (finding B2, R-SAF-2)."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.audit.v1 import audit_pb2
from weir.inference.v1 import inference_pb2, inference_pb2_grpc
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason
from libs.registry import RegistrySnapshot
from libs.safety_filter import Pack, Rule
from libs.safety_policies import Origin, compose, pinned
from tests.support.filtering import CARD, enforce, filtering, policy, rule
from tests.support.leaves import Rig
from tests.support.native_stream import HEADERS, Stream, ids, refusal, taken

BLOCK = policy("floor@1", rule("wombat", "block"))
STRICT = policy("strict@1", rule(CARD, "redact", replacement="[card]"))
LOOSE = policy("loose@1", rule(CARD, "flag"), rule("wombat", "flag", name="w"))
ALL = (BLOCK, STRICT, LOOSE)
UNDER: dict[str, Any] = {"floor": ["floor@1"], "tenant": ["strict@1"], "version": ["loose@1"]}
PINS = ["floor@1", "strict@1", "loose@1"]

STRICTNESS = ("", "flag", "tokenise", "redact", "block")
atoms = st.sampled_from(["a", "b", "1", "[ab]", "a{1,3}", "[^a]", r"\d", "ab", "b1", r"\b"])
patterns = st.lists(atoms, min_size=1, max_size=3).map(lambda parts: "a" + "".join(parts) + "1")


@st.composite
def policies(draw: st.DrawFn, name: str) -> list[Rule]:
    rules = []
    for number in range(draw(st.integers(1, 3))):
        action = draw(st.sampled_from(STRICTNESS[1:]))
        stage = "input" if action == "tokenise" else draw(st.sampled_from(["input", "output", "both"]))
        label = "A" if action == "tokenise" else draw(st.sampled_from(["", "*"]))
        rules.append(Rule(f"r{number}", "test", draw(patterns), action, stage, label, name))
    return rules


def left(pack: Pack, text: str) -> tuple[set[int], bool]:
    """Places of an output whose characters leave, and whether it is stopped."""
    stream = pack.open_output()
    released = stream.feed(text) + stream.finish()
    gone = {at for begin, end in stream.replaced for at in range(begin, end)}
    if not stream.blocked:
        return set(range(len(text))) - gone, False
    # Up to the cut, what did not go left as it was.
    cut, kept = 0, len(released) - sum(len(pack.output.full.rules[i].replacement) for i in _replacing(pack, stream))
    while cut < len(text) and (kept or cut in gone):
        kept -= cut not in gone
        cut += 1
    return set(range(cut)) - gone, True


def _replacing(pack: Pack, stream: Any) -> list[int]:
    """The rule of each replacement that stands in the text: a match that another made longer has one only."""
    joined, found = [], [index for index in stream.findings if pack.output.full.rules[index].bit == 1]
    for position, (begin, _) in enumerate(stream.replaced):
        if not position or begin != stream.replaced[position - 1][1] or found[position] != found[position - 1]:
            joined.append(found[position])
    return joined


@settings(max_examples=400, deadline=None)
@given(policies("a@1"), policies("b@1"), st.text("ab1 ", max_size=14), st.booleans())
def test_b2_adding_a_policy_never_weakens_a_verdict(one: list[Rule], other: list[Rule], text: str, first: bool) -> None:
    rules = {"a@1": one, "b@1": other}
    alone, both = compose(("a@1",), rules), compose(("a@1", "b@1") if first else ("b@1", "a@1"), rules)
    before, after = (pack.check_input([text]) for pack in (alone, both))
    assert STRICTNESS.index(after.action) >= STRICTNESS.index(before.action)
    if all(not each.replacement or each.action == "tokenise" for each in one + other):
        (left_before, was_stopped), (left_after, is_stopped) = left(alone, text), left(both, text)
        assert is_stopped >= was_stopped
        assert left_after <= left_before


def test_b2_a_match_that_another_policys_match_covers_in_part_stays_hidden() -> None:
    """Leftmost first, and on behind its end, would let "34" leave again once "word 12" is redacted too."""
    rules = {
        "a@1": [Rule("a", "test", "1234", "redact", "output", "", "a@1")],
        "b@1": [Rule("b", "test", "word 12", "redact", "output", "", "b@1")],
    }
    assert compose(("a@1",), rules).check_output("word 1234.").texts == ("word .",)
    assert compose(("a@1", "b@1"), rules).check_output("word 1234.").texts == (".",)


@given(st.lists(st.sampled_from(["a@1", "b@1", "c@2"]), max_size=4), st.permutations([0, 1, 2]))
def test_b2_a_rule_that_several_policies_have_is_as_strict_as_the_strictest(pins: list[str], order: list[int]) -> None:
    actions = ("flag", "redact", "block")
    rules = {
        pin: [Rule("r", "test", "wombat", actions[at], "both", "", pin)]
        for pin, at in zip(("a@1", "b@1", "c@2"), order, strict=True)
    }
    named = tuple(dict.fromkeys(pins))
    if not named:
        return
    wanted = max((rules[pin][0] for pin in named), key=lambda each: actions.index(each.action))
    (found,) = compose(named, rules).check_input(["a wombat"]).findings
    assert (found.action, found.pack) == (wanted.action, wanted.pack)


def test_b2_who_asks_for_a_policy_is_told() -> None:
    tenant, version = pb.Tenant(safety_policies=["b@1", "a@1"]), pb.ModelVersion(safety_policies=["b@1", "c@1"])
    assert [(each.pin, each.origins) for each in pinned(["a@1"], tenant, version)] == [
        ("a@1", (Origin.FLOOR, Origin.TENANT)),
        ("b@1", (Origin.TENANT, Origin.MODEL)),
        ("c@1", (Origin.MODEL,)),
    ]


async def record(mesh: Rig) -> audit_pb2.RequestEvent:
    while True:
        found = await asyncio.wait_for(mesh.records.get(), 10)
        if found.HasField("request"):
            return found.request


async def generate(mesh: Rig, said: str) -> tuple[str, inference_pb2.End]:
    async with Stream(mesh, max_tokens=60) as stream:
        await (await taken(mesh.workers[0])).last(ids(said))
        return await stream.rest()


async def test_b2_a_model_version_loosens_nothing_and_the_record_names_every_policy(mesh: Rig) -> None:
    async with filtering(mesh, *ALL, **UNDER):
        text, end = await generate(mesh, "1234-5678 of a wombat")
        assert (text, end.finish_reason) == ("[card] of a ", inference_pb2.FINISH_REASON_CONTENT_FILTER)
        assert list((await record(mesh)).safety_policies) == PINS
        async with Stream(mesh, token_ids=ids("a wombat")) as stream:
            assert (await refusal(stream)).reason is Reason.CONTENT_FILTER
        assert list((await record(mesh)).safety_policies) == PINS


async def test_b2_embeddings_are_under_the_same_policies(mesh: Rig) -> None:
    async with filtering(mesh, *ALL, **{**UNDER, "tenant": [], "version": ["strict@1"]}):
        worker = mesh.workers[0]
        address = f"127.0.0.1:{worker.port}"
        await mesh.put(
            pb.Endpoint(
                service="worker", instance="worker-a", address=address, zone="zone-a", model_versions=["tiny@1"]
            )
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
            stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
            request = inference_pb2.EmbedRequest(model="tiny", inputs=["1234-5678"])
            await stub.Embed(request, metadata=HEADERS, timeout=30)
        assert bytes(worker.embeds.get_nowait().inputs[0].ids) == b"[card]"
        assert list((await record(mesh)).safety_policies) == ["floor@1", "strict@1"]


async def test_b2_a_change_holds_for_new_requests_and_open_streams_keep_theirs(mesh: Rig) -> None:
    async with filtering(mesh, *ALL, floor=["floor@1"], tenant=["loose@1"]) as keeper:
        async with Stream(mesh, max_tokens=60) as old:
            running = await taken(mesh.workers[0])
            await running.tokens(ids("1234-5678 "))
            assert await old.text(10) == "1234-5678 "
            await enforce(mesh, keeper, ALL, floor=["floor@1"], tenant=["strict@1"])
            assert (await generate(mesh, "1234-5678"))[0] == "[card]"
            await running.last(ids("1234-5678"))
            assert (await old.rest())[0] == "1234-5678"
        new, first = [list((await record(mesh)).safety_policies) for _ in range(2)]
        assert (new, first) == (["floor@1", "strict@1"], ["floor@1", "loose@1"])


async def test_b2_filters_are_opened_again_under_the_policies_that_they_had(mesh: Rig) -> None:
    """Safety restarts while the floor has become another: a stream's rules do not change under it."""
    async with filtering(mesh, *ALL, **UNDER) as keeper:
        async with Stream(mesh, max_tokens=60) as stream:
            running = await taken(mesh.workers[0])
            await running.tokens(ids("a 1234-"))
            assert await stream.text(2) == "a "
            await enforce(mesh, keeper, ALL, floor=["loose@1"])
            keeper.book._packs.clear()  # a service that has compiled nothing yet
            await mesh.safety.stop()
            await mesh.safety.start()
            await running.last(ids("5678 b"))
            assert (await stream.rest())[0] == "[card] b"
        assert list((await record(mesh)).safety_policies) == PINS


async def test_b2_a_gateway_that_lags_behind_does_not_miss_the_floor(mesh: Rig) -> None:
    async with filtering(mesh, *ALL, floor=["loose@1"]) as keeper:
        names = {f"{each.id}@{each.version}": each for each in ALL}
        keeper.apply(
            RegistrySnapshot(safety_policies=names, safety_floors={"mesh": pb.SafetyFloor(policies=["strict@1"])})
        )
        assert (await generate(mesh, "1234-5678"))[0] == "[card]"
        assert list((await record(mesh)).safety_policies) == ["strict@1", "loose@1"]


@pytest.mark.parametrize("tenant", ["closed", "flagged"])
async def test_b2_policies_that_never_arrive_refuse_or_flag_as_the_tenant_says(mesh: Rig, tenant: str) -> None:
    headers = [("x-weir-tenant", tenant), *HEADERS[1:]]
    floor = ["floor@1", "gone@1"]
    async with filtering(mesh, BLOCK, floor=floor), Stream(mesh, headers, max_tokens=5) as stream:
        if tenant == "closed":
            assert (await refusal(stream)).reason is Reason.DEPENDENCY_UNAVAILABLE
        else:
            await (await taken(mesh.workers[0])).last(ids("x"))
            text, end = await stream.rest()
            assert (text, list(end.degraded)) == ("x", ["safety_skipped"])


async def test_b4_what_is_too_long_is_refused_before_anybody_reads_it(mesh: Rig) -> None:
    asked: list[Any] = []
    normal = mesh.safety.handler

    def handle(call: Any, context: Any) -> Any:
        asked.append(call)
        return normal(call, context)

    mesh.safety.handler = handle
    async with Stream(mesh, token_ids=ids("x" * 64)) as stream:
        assert (await refusal(stream)).reason is Reason.CONTEXT_LENGTH_EXCEEDED
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.EmbedRequest(model="tiny", inputs=["x" * 65])
        with pytest.raises(grpc.aio.AioRpcError, match="exceeds 64 tokens"):
            await stub.Embed(request, metadata=HEADERS, timeout=30)
    assert asked == []
