"""The edge of unary predictions: real etcd, control plane, edge-auth and Envoy before small Open Inference servers."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import grpc
from google.protobuf.message import Message
from inference import open_inference_pb2, open_inference_pb2_grpc
from weir.registry.v1 import registry_pb2 as pb

from libs import apikeys
from libs.errors import Reason, WeirError
from libs.registry import EtcdStore, Put, keys
from libs.rpc.server import bind, make_server
from libs.service import serve
from services.controlplane.policy.names import EDGE, ROUTES
from services.edge_auth.app import EdgeAuthService
from services.edge_auth.app import build as build_edge_auth
from services.edge_auth.config import Settings as EdgeAuthSettings
from services.predictor import describe, rest
from services.predictor.config import Settings as PredictorSettings
from tests.support.certificates import tls_of
from tests.support.edge import EnvoyProcess, Plane, control_plane, drop_endpoint, edge_config
from tests.support.etcd import EtcdServer
from tests.support.upstreams import Upstreams

PEPPER = b"0123456789abcdef0123456789abcdef"
ENVOY = "envoy-test"
"""Envoy's node id."""
MODEL = "churn"
_ANY_SIZE = [("grpc.max_receive_message_length", -1)]
"""As NVIDIA's clients have it."""


class Acknowledgements:
    """The newest version of each type that each client has acknowledged, and when."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], int] = {}
        self._changed = asyncio.Event()

    def note(self, node: str, type_url: str, version: str) -> None:
        """For the control plane: told of every acknowledgement."""
        self._newest[node, type_url] = max(self._newest.get((node, type_url), 0), int(version))
        self._changed.set()

    async def wait(self, revision: int, *, node: str = ENVOY, type_url: str = ROUTES) -> float:
        """`time.monotonic()` when the client had acknowledged this revision or a later one; bound it with a timeout."""
        while self._newest.get((node, type_url), 0) < revision:
            self._changed.clear()
            await self._changed.wait()
        return time.monotonic()


class Predictor(open_inference_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers with its own name as the model's, with the version that the edge says it chose, and with its inputs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: Mapping[str, str] = {}
        self.leaves = 0
        """How many calls are refused as by one that leaves."""
        self.lacks: set[str] = set()
        """Versions that nobody has any more, as this one says."""
        self.asked = 0
        """How many calls came."""
        self.kill: Callable[[], Awaitable[None]]

    async def ModelInfer(  # noqa: N802
        self, request: open_inference_pb2.ModelInferRequest, context: grpc.aio.ServicerContext
    ) -> open_inference_pb2.ModelInferResponse:
        self.seen = {key: str(value) for key, value in context.invocation_metadata() or ()}
        self.asked += 1
        if request.model_name in self.lacks:
            context.set_trailing_metadata(describe.NOBODY_ELSE)
            raise WeirError(Reason.NO_WORKERS, "it is not loaded here", retry_after=3.0)
        if self.leaves:
            self.leaves -= 1
            raise WeirError(Reason.DRAINING, "it leaves")
        if request.model_name == "refused":
            raise WeirError(Reason.QUOTA_REQUESTS, "too many rows", limit="rows", retry_after=3)
        await context.send_initial_metadata([("x-weir-arm", self.seen.get("x-weir-arm", ""))])
        version = self.seen.get("x-weir-model-version", "")
        answer = open_inference_pb2.ModelInferResponse(model_name=self.name, model_version=version, id=request.id)
        for tensor in request.inputs:
            answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        answer.raw_output_contents.extend(request.raw_input_contents)
        return answer

    async def ModelMetadata(  # noqa: N802
        self, request: open_inference_pb2.ModelMetadataRequest, context: grpc.aio.ServicerContext
    ) -> open_inference_pb2.ModelMetadataResponse:
        self.seen = {key: str(value) for key, value in context.invocation_metadata() or ()}
        answer = open_inference_pb2.ModelMetadataResponse(name=request.name, versions=[request.version])
        answer.inputs.add(name="x", datatype="FP32", shape=[-1, 3])
        return answer

    async def ServerReady(  # noqa: N802
        self, request: open_inference_pb2.ServerReadyRequest, context: grpc.aio.ServicerContext
    ) -> open_inference_pb2.ServerReadyResponse:
        return open_inference_pb2.ServerReadyResponse(ready=True)

    async def ServerLive(  # noqa: N802
        self, request: open_inference_pb2.ServerLiveRequest, context: grpc.aio.ServicerContext
    ) -> open_inference_pb2.ServerLiveResponse:
        return open_inference_pb2.ServerLiveResponse(live=True)

    async def ModelReady(  # noqa: N802
        self, request: open_inference_pb2.ModelReadyRequest, context: grpc.aio.ServicerContext
    ) -> open_inference_pb2.ModelReadyResponse:
        return open_inference_pb2.ModelReadyResponse(ready=request.name == MODEL)

    async def RepositoryIndex(  # noqa: N802
        self, request: open_inference_pb2.RepositoryIndexRequest, context: grpc.aio.ServicerContext
    ) -> open_inference_pb2.RepositoryIndexResponse:
        answer = open_inference_pb2.RepositoryIndexResponse()
        answer.models.add(name=MODEL, version="1", state="READY")
        return answer

    async def ModelStatistics(  # noqa: N802
        self, request: open_inference_pb2.ModelStatisticsRequest, context: grpc.aio.ServicerContext
    ) -> open_inference_pb2.ModelStatisticsResponse:
        answer = open_inference_pb2.ModelStatisticsResponse()
        answer.model_stats.add(name=request.name, version=request.version, inference_count=2**60)
        return answer


def rollout(weight: int, *, phase: pb.RolloutPhase = pb.ROLLOUT_PHASE_CANARY, **radius: object) -> pb.Rollout:
    """Of `MODEL`, from version 1 to 2, sticky by user."""
    return pb.Rollout(
        alias=MODEL,
        id="r-edge",
        baseline=f"{MODEL}@1",
        arms=[pb.RolloutArm(name="canary", model_version=f"{MODEL}@2")],
        sticky=pb.STICKY_BY_USER,
        blast_radius=pb.BlastRadius(**radius),  # type: ignore[arg-type]
        state=pb.RolloutState(phase=phase, step=1, weights=[weight]),
    )


class PredictionEdge:
    """Everything that a test of predictions touches."""

    def __init__(
        self,
        *,
        store: EtcdStore,
        etcd: str,
        plane: Plane,
        envoy: EnvoyProcess,
        auth: EdgeAuthService,
        acks: Acknowledgements,
        channel: grpc.aio.Channel,
        port: int,
        predictors: Mapping[str, Predictor],
        tokens: Mapping[str, str],
        pki: Path,
    ) -> None:
        self.store = store
        self.etcd = etcd
        """Its address."""
        self.plane = plane
        self.envoy = envoy
        self.acks = acks
        self.predictors = predictors
        self._auth = auth
        self.port = port
        """Of the plain listener."""
        self.tokens = tokens
        self.stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        """Of the plain listener."""
        self._pki = pki
        self._open: set[asyncio.Event] = set()

    async def put(self, *messages: Message) -> int:
        """Writes resources in one transaction; returns the revision."""
        result = await self.store.txn(puts=[Put(keys.key_of(message), keys.encode(message)) for message in messages])
        return result.revision

    async def known(self, revision: int) -> None:
        """Edge-auth decides by this revision, and Envoy has acknowledged the routes that hold at it."""
        async with asyncio.timeout(60):
            await self._auth._view.wait_until(lambda snapshot: snapshot.revision >= revision)
            while True:
                served = self.plane.control.publisher.current
                if served.revision >= revision:
                    break
                await asyncio.sleep(0.005)
            await self.acks.wait(int(served.offers_for(EDGE, "")[ROUTES].version))

    async def infer(self, model: str, user: str = "", *, tenant: str = "acme", **headers: str) -> tuple[str, str]:
        """Who answered, and which version the edge chose.

        :raises grpc.aio.AioRpcError: as the call does.
        """
        metadata = [("authorization", f"Bearer {self.tokens[tenant]}"), ("x-weir-model", model)]
        metadata += [("x-weir-user", user)] if user else []
        metadata += [(name.replace("_", "-"), value) for name, value in headers.items()]
        over = asyncio.Event()
        self._open.add(over)
        try:
            answer = await self.stub.ModelInfer(
                open_inference_pb2.ModelInferRequest(model_name=model), metadata=metadata, timeout=60
            )
        finally:
            self._open.discard(over)
            over.set()
        return answer.model_name, answer.model_version

    @contextlib.asynccontextmanager
    async def predictor(self, version: str) -> AsyncIterator[Predictor]:
        """A predictor of that version of `MODEL` while the block runs. It leaves the registry first and ends when Envoy
        has the routes without it, as a service that drains does."""
        instance = f"predictor-{version}"
        async with _predictor(self._pki, self.store, version) as found:
            try:
                yield found
            finally:
                await self.known(await drop_endpoint(self.store, "predictor", instance))
                await self.reaches(MODEL, "", f"{MODEL}@1")
                # Whoever came before keeps the routes of then.
                for over in tuple(self._open):
                    await over.wait()

    @contextlib.asynccontextmanager
    async def killed(self, version: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """A predictor of that version, and what ends it at once; its endpoint stays in the registry."""
        async with _predictor(self._pki, self.store, version) as found:
            async with asyncio.timeout(60):
                await self.reaches(f"{MODEL}@{version}", "", f"{MODEL}@{version}")
                while (await self.infer(f"{MODEL}@{version}"))[0] != found.name:
                    pass
            yield found.kill
        await self.known(await drop_endpoint(self.store, "predictor", f"predictor-{version}"))

    async def versions(self, model: str, users: Sequence[str], *, tenant: str = "acme") -> list[str]:
        """The version that answers each user."""
        turns = asyncio.Semaphore(8)

        async def one(user: str) -> str:
            async with turns:
                return (await self.infer(model, user, tenant=tenant))[1]

        return list(await asyncio.gather(*(one(user) for user in users)))

    async def reaches(self, model: str, user: str, version: str, *, tenant: str = "acme") -> None:
        """Returns once this user is answered by this version: Envoy's worker threads have the newest routes, too."""
        async with asyncio.timeout(60):
            while (await self.infer(model, user, tenant=tenant))[1] != version:
                pass


def registered(tenants: Sequence[str]) -> tuple[list[Message], dict[str, str]]:
    """Tenants with a key each, and the keys' texts by tenant."""
    made = {tenant: apikeys.make(secrets.token_bytes) for tenant in tenants}
    resources: list[Message] = [pb.Tenant(id=tenant, plan=pb.PLAN_PAID) for tenant in tenants]
    resources.append(pb.ModelGrant(subject="all", namespaces=["default"], pinned_namespaces=["default"]))
    resources += [
        pb.ApiKey(id=key.id, tenant=tenant, hash=apikeys.hash_key(key, PEPPER), scopes=["inference"])
        for tenant, key in made.items()
    ]
    return resources, {tenant: key.text for tenant, key in made.items()}


@contextlib.asynccontextmanager
async def prediction_edge(
    directory: Path,
    *,
    tenants: Sequence[str] = ("acme", "other"),
    resources: Sequence[Message] = (),
    fsync: bool = False,
) -> AsyncIterator[PredictionEdge]:
    """Runs while the block does. `MODEL` gives version 1; each of its versions 1 and 2 has a predictor of its own.

    :param resources: further ones that shall be there from the beginning.
    """
    async with contextlib.AsyncExitStack() as stack:
        pki = directory / "pki"
        etcd = EtcdServer(directory / "etcd", fsync=fsync)
        etcd.start()
        stack.callback(etcd.stop)
        store, followed, followed_by_auth = (EtcdStore((etcd.endpoint,)) for _ in range(3))
        for each in (store, followed, followed_by_auth):
            stack.push_async_callback(each.close)
        accounts, tokens = registered(tenants)
        versions = [pb.ModelVersion(name=MODEL, version=v, pool="predict", tier="fast") for v in ("1", "2")]
        alias = pb.Alias(name=MODEL, targets=[pb.AliasTarget(model_version=f"{MODEL}@1", weight=100)])
        everything = [*accounts, *versions, alias, *resources]
        for start in range(0, len(everything), 100):
            part = everything[start : start + 100]
            await store.txn(puts=[Put(keys.key_of(message), keys.encode(message)) for message in part])
        upstreams = Upstreams(store, pki)
        await upstreams.start(without=("edge-auth",))
        stack.push_async_callback(upstreams.stop)
        auth = await stack.enter_async_context(_edge_auth(directory, pki, store, followed_by_auth))
        predictors = {}
        for version in ("1", "2"):
            predictors[version] = await stack.enter_async_context(_predictor(pki, store, version))
        acks = Acknowledgements()
        # Everything shares this process: on a busy machine answers are late, and that is not what is tested here.
        edge = edge_config(pki, access_log=False, auth_timeout_ms=20_000, ratelimit_timeout_ms=20_000)
        plane = await stack.enter_async_context(
            control_plane(store=followed, tls=tls_of(pki, "controlplane"), edge=edge, acknowledged=acks.note)
        )
        envoy = EnvoyProcess(directory / "envoy", xds=plane.address, tls=tls_of(pki, "envoy"))
        stack.push_async_callback(envoy.stop)
        await envoy.start(("edge-http", "edge-https"))
        port = (await envoy.listeners())["edge-http"]
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_ANY_SIZE))
        found = PredictionEdge(
            store=store,
            etcd=etcd.endpoint,
            plane=plane,
            envoy=envoy,
            auth=auth,
            acks=acks,
            channel=channel,
            port=port,
            predictors=predictors,
            tokens=tokens,
            pki=pki,
        )
        for cluster in ("edge-auth", f"predictor/{MODEL}@1", f"predictor/{MODEL}@2"):
            await envoy.wait_counter(f"cluster.{cluster}.membership_total", bool)
        await found.reaches(MODEL, "", f"{MODEL}@1", tenant=tenants[0])
        yield found


@contextlib.asynccontextmanager
async def _edge_auth(
    directory: Path, pki: Path, store: EtcdStore, followed: EtcdStore
) -> AsyncIterator[EdgeAuthService]:
    pepper = directory / "pepper"
    pepper.write_bytes(PEPPER)
    settings = EdgeAuthSettings(
        service="edge_auth",
        instance="edge-auth-0",
        tls=tls_of(pki, "edge-auth"),
        pepper_file=str(pepper),
        audit_target="",
    )
    service = await build_edge_auth(settings, store=followed)
    async with serve(service, settings) as running:
        await running.ready.wait()
        await _register(store, pb.Endpoint(service="edge_auth", instance="edge-auth-0"), running.port)
        yield service


@contextlib.asynccontextmanager
async def _predictor(pki: Path, store: EtcdStore, version: str) -> AsyncIterator[Predictor]:
    most = PredictorSettings(service="predictor", instance="p").max_message_bytes
    server = make_server(deadline_optional=("/",), max_message_bytes=most)
    servicer = Predictor(f"predictor-{version}")
    open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    rest.register(servicer, server, max_bytes=most)
    port = bind(server, "127.0.0.1:0", tls=tls_of(pki, "predictor"))
    await server.start()
    endpoint = pb.Endpoint(service="predictor", instance=servicer.name, model_versions=[f"{MODEL}@{version}"])
    await _register(store, endpoint, port)
    servicer.kill = lambda: server.stop(grace=None)
    try:
        yield servicer
    finally:
        # Whoever was sent here is answered.
        await server.stop(grace=20)


async def _register(store: EtcdStore, endpoint: pb.Endpoint, port: int) -> None:
    endpoint.address, endpoint.zone = f"127.0.0.1:{port}", "zone-a"
    await store.txn(puts=[Put(keys.key_of(endpoint), keys.encode(endpoint))])
