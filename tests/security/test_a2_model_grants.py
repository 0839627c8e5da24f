"""A2: a tenant uses what it is granted, and nothing else exists for it: whichever way it asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api import httpbody_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.admission.v1 import admission_pb2
from weir.inference.v1 import inference_pb2, inference_pb2_grpc
from weir.openai.v1 import openai_pb2, openai_pb2_grpc
from weir.registry.v1 import registry_pb2 as pb
from weir.router.v1 import router_pb2

from libs.authority.models import ModelAccess, subjects_of
from libs.breaker import BreakerBoard, BreakerOptions
from libs.clock import SystemClock
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.resources.namespaces import namespace_of
from libs.routing import BUCKETS, RouteRequest, RoutingTable
from services.edge_auth.placement import Placer
from services.edge_auth.responses import NO_MODEL
from services.router.server import RouterServicer
from tests.support.leaves import MODEL, Rig, rig
from tests.support.native_stream import FLAGGED, HEADERS, Stream, ids, refusal, taken
from tests.support.predictions import prediction_edge
from tests.support.registry_service import alias, grant, tenant
from tests.support.tokenizer import write_byte_tokenizer

TENANTS = ("acme", "lab", "poor", "shadow", "stranger")
VERSIONS = {
    f"{name}@{number}": pb.ModelVersion(name=name, version=number, pool="p", tier="fast", namespace=namespace)
    for name, number, namespace in (
        ("open", "1", ""),
        ("open", "2", "lab"),
        ("closed", "1", "lab"),
        ("closed", "2", "lab"),
        ("mixed", "1", "default"),
        ("lora", "acme", "vault"),
    )
}
NAMES = (*VERSIONS, "open", "closed", "mixed", "broken", "nothing", "nothing@1", "", "@")
FEW_NAMESPACES = st.lists(st.sampled_from(["default", "lab", "vault"]), max_size=2)


def split(name: str, *versions: str) -> pb.Alias:
    return alias(*versions, name=name)


@st.composite
def snapshots(draw: st.DrawFn) -> RegistrySnapshot:
    """A registry of three namespaces in which an alias gives versions of two, and rollouts try one's on the other's."""
    given_grants = {
        subject: pb.ModelGrant(
            subject=subject,
            namespaces=draw(FEW_NAMESPACES),
            models=draw(st.lists(st.sampled_from(["open", "closed", "lora@acme", "open@2", "gone"]), max_size=2)),
            pinned_namespaces=draw(FEW_NAMESPACES),
        )
        for subject in draw(st.sets(st.sampled_from(["all", "plan:paid", "plan:gold", "tenant:lab", "tenant:gone"])))
    }
    gone = draw(st.sampled_from(["", "", "open@1", "closed@1", "open@2"]))
    phase = draw(st.sampled_from([pb.ROLLOUT_PHASE_CANARY, pb.ROLLOUT_PHASE_SHADOW, pb.ROLLOUT_PHASE_PROMOTED]))
    rollouts = {
        name: pb.Rollout(
            alias=name,
            id=f"r-{name}",
            baseline=f"{name}@1",
            arms=[pb.RolloutArm(name="canary", model_version=f"{name}@2")],
            sticky=pb.STICKY_BY_USER,
            shadow=pb.ShadowPlan(share=BUCKETS),
            state=pb.RolloutState(phase=phase, step=1, weights=[draw(st.integers(0, BUCKETS))]),
        )
        for name in draw(st.sets(st.sampled_from(["open", "closed"])))
    }
    return RegistrySnapshot(
        revision=7,
        model_versions={name: version for name, version in VERSIONS.items() if name != gone},
        aliases={
            "open": split("open", "open@1"),
            "closed": split("closed", "closed@1"),
            "mixed": split("mixed", "mixed@1", "closed@2"),
            "broken": split("broken", "gone@1"),
        },
        tenants={
            "acme": tenant("acme", plan_policy="gold"),
            "lab": tenant("lab"),
            "poor": tenant("poor", plan=pb.PLAN_FREE),
            "shadow": tenant("shadow"),
        },
        model_grants=given_grants,
        rollouts=rollouts,
    )


def granted(snapshot: RegistrySnapshot, who: str, name: str, version: str) -> bool:
    """What the protos say, read off them: this version may be given to this tenant under this name."""
    known = snapshot.tenants.get(who)
    found = [] if known is None else [snapshot.model_grants.get(subject) for subject in subjects_of(known)]
    namespace = namespace_of(VERSIONS[version])
    return any(
        each is not None
        and (name in each.models or namespace in (each.pinned_namespaces if "@" in name else each.namespaces))
        for each in found
    )


def resolved(table: RoutingTable, who: str, name: str, user: str = "") -> Any:
    """The route; None where there is no such model for this caller, in always the same words."""
    try:
        return table.resolve(RouteRequest(who, name, user=user, request_id="q"))
    except WeirError as refused:
        if (refused.reason, refused.message) != (Reason.MODEL_NOT_FOUND, f"There is no model {name!r}."):
            raise
        return None


@settings(max_examples=300, deadline=None)
@given(snapshots(), st.sampled_from(["", "u1", "u2", "u3"]))
def test_a2_no_route_and_no_mirror_leads_to_a_version_that_is_not_granted(
    snapshot: RegistrySnapshot, user: str
) -> None:
    table = RoutingTable.of(snapshot)
    for who in TENANTS:
        for name in NAMES:
            route = resolved(table, who, name, user)
            if route is not None:
                assert granted(snapshot, who, name, route.model_version)
                assert route.mirror is None or granted(snapshot, who, name, route.mirror.model_version)
            if not table.access.may_use(who, name):
                assert route is None
                assert table.place(RouteRequest(who, name, user=user)) is None
            assert table.access.explain(who, name).allowed is table.access.may_use(who, name)


@settings(max_examples=200, deadline=None)
@given(snapshots())
def test_a2_what_is_listed_is_exactly_what_resolves(snapshot: RegistrySnapshot) -> None:
    table = RoutingTable.of(snapshot)
    for who in TENANTS:
        routes = {name: route for name in NAMES if (route := resolved(table, who, name)) is not None}
        listed = {model.id: model for model in table.list_models(who)}
        assert listed.keys() == routes.keys()
        for name in NAMES:
            assert table.find_model(who, name) == listed.get(name)
        assert {name: model.model_version for name, model in listed.items()} == {
            name: route.model_version for name, route in routes.items()
        }


@settings(max_examples=200, deadline=None)
@given(snapshots(), snapshots())
def test_a2_grants_followed_step_by_step_are_those_read_anew(before: RegistrySnapshot, after: RegistrySnapshot) -> None:
    assert ModelAccess.of(after, ModelAccess.of(before, ModelAccess())) == ModelAccess.of(after, ModelAccess())


@pytest.mark.parametrize("model", ["open", "open@1", "lora@acme"])
def test_a2_without_grants_nobody_uses_anything(model: str) -> None:
    table = RoutingTable.of(
        RegistrySnapshot(
            revision=1,
            model_versions=VERSIONS,
            aliases={"open": split("open", "open@1")},
            tenants={"acme": tenant("acme")},
        )
    )
    assert resolved(table, "acme", model) is None
    assert table.list_models("acme") == ()


# ---- every entry of a gateway -----------------------------------------------------------------


Entry = Callable[[Rig, str], Awaitable[Any]]
CHAT = [{"role": "user", "content": "hi"}]


def openai(method: str, body: Callable[[str], Any]) -> Entry:
    """An OpenAI route: headers and bytes of the answer."""

    async def ask(mesh: Rig, model: str) -> Any:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
            call = getattr(openai_pb2_grpc.OpenAIServiceStub(channel), method)(
                body(model), metadata=HEADERS, timeout=20
            )
            data = b"".join([chunk.data async for chunk in call])
            return sorted(await call.initial_metadata()), data, sorted(await call.trailing_metadata())

    return ask


def native(method: str, message: Callable[[str], Any], headers: list[tuple[str, str]] = HEADERS) -> Entry:
    """A unary native RPC: status, words and metadata of its refusal, or the answer."""

    async def ask(mesh: Rig, model: str) -> Any:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
            stub = getattr(inference_pb2_grpc.InferenceServiceStub(channel), method)
            try:
                return await stub(message(model), metadata=headers, timeout=20)
            except grpc.aio.AioRpcError as error:
                return (
                    error.code(),
                    error.details(),
                    sorted(error.initial_metadata()),
                    sorted(error.trailing_metadata()),
                )

    return ask


async def generate(mesh: Rig, model: str) -> Any:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(metadata=HEADERS, timeout=20)
        await call.write(inference_pb2.GenerateRequest(start=inference_pb2.GenerationSpec(model=model, prompt="hi")))
        return await call.code(), await call.details(), sorted(await call.trailing_metadata())


def body(**fields: Any) -> Callable[[str], httpbody_pb2.HttpBody]:
    return lambda model: httpbody_pb2.HttpBody(data=json.dumps({"model": model, **fields}).encode())


def spec(model: str) -> inference_pb2.GenerationSpec:
    return inference_pb2.GenerationSpec(model=model, prompt="hi")


def count(headers: list[tuple[str, str]]) -> Entry:
    return native("CountTokens", lambda model: inference_pb2.CountTokensRequest(spec=spec(model)), headers)


ENTRIES: dict[str, Entry] = {
    "chat": openai("CreateChatCompletion", body(messages=CHAT)),
    "chat-stream": openai("CreateChatCompletion", body(messages=CHAT, stream=True)),
    "completions": openai("CreateCompletion", body(prompt="hi")),
    "embeddings": openai("CreateEmbedding", body(input="hi")),
    "get-model": openai("GetModel", lambda model: openai_pb2.GetModelRequest(id=model)),
    "generate": generate,
    "complete": native("Complete", lambda model: inference_pb2.CompleteRequest(spec=spec(model))),
    "embed": native("Embed", lambda model: inference_pb2.EmbedRequest(model=model, inputs=["hi"])),
    "count-tokens": count(HEADERS),
}
HIDDEN = {"vault": "voult", "vault@1": "voult@1", "tiny@1": "tony@1", "tiny@2": "tiny@3", "tiny@lora": "tiny@lara"}
"""Another namespace's alias and version, the released version by its own name, an unreleased one, an adapter; each
with a name as long that is nobody's."""
AGAIN = ("x-request-id", "date")


async def seen(mesh: Rig, holds: Callable[[RegistrySnapshot], object]) -> None:
    async with asyncio.timeout(10):
        while not holds(mesh.gateway._catalog.snapshot):  # noqa: ASYNC110 - a watch of the store
            await asyncio.sleep(0.005)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Rig]:
    """A gateway and a real router that know models of two namespaces, of which "default" is released to all."""
    folder = tmp_path / "model"
    folder.mkdir()
    async with rig(write_byte_tokenizer(folder), tmp_path / "state") as mesh:
        known = mesh.gateway._catalog.snapshot.model_versions[MODEL]
        for name, version, namespace in (("vault", "1", "vault"), ("tiny", "2", ""), ("tiny", "lora", "")):
            made = pb.ModelVersion()
            made.CopyFrom(known)
            made.name, made.version, made.namespace = name, version, namespace
            await mesh.put(made)
        await mesh.put(split("vault", "vault@1"))
        await mesh.put(grant("all", namespaces=["default"]))
        await seen(mesh, lambda snapshot: not snapshot.model_grants["all"].pinned_namespaces)
        router = RouterServicer(
            BreakerBoard(BreakerOptions()),
            instance="r",
            clock=SystemClock(),
            max_in_flight=99,
            report_seconds=1,
        )

        def decide(call: Any, context: Any) -> router_pb2.RouterReply:
            router.use(mesh.gateway._catalog.snapshot)
            return router._handle(call, context)

        mesh.router.handler = decide
        yield mesh


def told(answer: Any, model: str) -> str:
    """What the caller sees, but for the name that it sent itself and for the request's own id."""
    text = repr(
        [
            [item for item in part if item[0] not in AGAIN] if isinstance(part, list) else part
            for part in (answer if isinstance(answer, tuple) else (answer,))
        ]
    )
    return text.replace(model, "MODEL")


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("entry", ENTRIES)
async def test_a2_refused_is_byte_for_byte_as_not_existing(guarded: Rig, entry: str, hidden: str) -> None:
    refused = told(await ENTRIES[entry](guarded, hidden), hidden)
    assert refused == told(await ENTRIES[entry](guarded, HIDDEN[hidden]), HIDDEN[hidden])
    assert "MODEL_NOT_FOUND" in refused or "model_not_found" in refused
    assert guarded.admitted == []
    assert guarded.reserved == []
    assert all(worker.embeds.empty() for worker in guarded.workers)


async def test_a2_models_are_listed_by_grant(guarded: Rig) -> None:
    ask = openai("ListModels", lambda _: openai_pb2.ListModelsRequest())
    assert [each["id"] for each in json.loads((await ask(guarded, ""))[1])["data"]] == ["tiny"]
    await guarded.put(grant("tenant:closed", models=["vault@1", "vault"], pinned_namespaces=["default"]))
    await seen(guarded, lambda snapshot: "tenant:closed" in snapshot.model_grants)
    listed = [each["id"] for each in json.loads((await ask(guarded, ""))[1])["data"]]
    assert listed == ["tiny", "vault", "tiny@1", "tiny@2", "tiny@lora", "vault@1"]


async def test_a2_a_grant_opens_and_its_end_closes_for_that_tenant_alone(guarded: Rig) -> None:
    await guarded.put(grant("tenant:closed", models=["tiny@2"]))
    await seen(guarded, lambda snapshot: "tenant:closed" in snapshot.model_grants)
    async with Stream(guarded, token_ids=ids("hi")) as stream:
        running = await taken(guarded.workers[0])
        assert running.submit.model_version == MODEL
        await running.last(ids("ok"))
        await stream.rest()
    assert (await count(HEADERS)(guarded, "tiny@2")).model_version == "tiny@2"
    assert (await count(FLAGGED)(guarded, "tiny@2"))[0] is grpc.StatusCode.NOT_FOUND
    await guarded.put(grant("tenant:closed", namespaces=["default"]))
    await seen(guarded, lambda snapshot: not snapshot.model_grants["tenant:closed"].models)
    assert (await count(HEADERS)(guarded, "tiny@2"))[0] is grpc.StatusCode.NOT_FOUND


async def test_a2_the_ladder_leads_to_no_smaller_model_that_is_not_granted(guarded: Rig) -> None:
    smaller = pb.DegradationStep(smaller_model=pb.SmallerModel(models={"tiny": "vault"}))
    await guarded.put(pb.PlanPolicy(id="paid", ladder=[smaller]))
    await seen(guarded, lambda snapshot: "paid" in snapshot.plans)
    normal = guarded.admission.handler

    def full(call: Any, context: Any) -> Any:
        if call.HasField("admit") and call.admit.model_version == MODEL:
            error = WeirError(Reason.REJECTED_QUEUE_FULL, "the queue is full", retry_after=3.0)
            return admission_pb2.AdmissionReply(rejected=error.to_rejection())
        return normal(call, context)

    guarded.admission.handler = full
    async with Stream(guarded) as stream:
        assert (await refusal(stream)).reason is Reason.REJECTED_QUEUE_FULL
    assert guarded.admitted == []
    await guarded.put(grant("plan:paid", models=["vault"]))
    await seen(guarded, lambda snapshot: "plan:paid" in snapshot.model_grants)
    async with Stream(guarded) as stream:
        running = await taken(guarded.workers[0])
        assert running.submit.model_version == "vault@1"
        await running.finish()
        await stream.rest()


# ---- the edge ---------------------------------------------------------------------------------

PREDICT = "/inference.GRPCInferenceService/ModelInfer"


def test_a2_edge_auth_takes_the_name_of_what_is_not_granted_from_a_prediction() -> None:
    placer = Placer()
    placer.use(
        RegistrySnapshot(
            revision=1,
            model_versions=VERSIONS,
            aliases={"open": split("open", "open@1"), "closed": split("closed", "closed@1")},
            tenants={"acme": tenant("acme")},
            model_grants={"all": grant(namespaces=["default"], models=["open@2"])},
        )
    )

    def place(who: str, model: str) -> bytes:
        return placer.place(who, PREDICT, {"x-weir-model": model})

    for name in ("closed", "closed@1", "open@1", "nothing", "nothing@1", "open,open@1"):
        assert place("acme", name) == NO_MODEL, name
    assert place("stranger", "open") == NO_MODEL
    assert place("acme", "open") not in (NO_MODEL, b"")
    assert place("acme", "open@2") == b""


async def test_a2_a_prediction_for_a_version_that_is_not_granted_is_placed_nowhere(tmp_path: Path) -> None:
    """It goes where predictions of no model go, as one for a model that there is not: to any predictor, which refuses
    both alike (tests/unit/predictor/test_addressing.py), and who is still placed while the edge remembers it."""
    async with prediction_edge(tmp_path) as edge:
        assert (await edge.infer("churn@2"))[1] == "churn@2"
        await edge.known(
            await edge.put(grant("all", namespaces=["default"]), grant("tenant:other", models=["churn@2"]))
        )
        assert (await edge.infer("churn"))[1] == "churn@1"
        assert (await edge.infer("churn@2", tenant="other"))[1] == "churn@2"
        for name in ("churn@2", "churn@1", "churn@9"):
            await edge.reaches(name, "", "")
        assert (await edge.infer("churn@2", tenant="other"))[1] == "churn@2"
        await edge.known(await edge.put(grant("all", namespaces=["elsewhere"])))
        await edge.reaches("churn", "", "")
