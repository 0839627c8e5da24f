"""A predictor in this process: a registry in memory, a blob store on disk, models small enough to train in a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from inference import open_inference_pb2 as oip
from inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import LocalBlobStore, Options, SigningKey, make_key, manifest_digest, push, sign
from libs.registry import MemoryStore, Put, keys
from libs.service import serve
from services.predictor.app import Predictor, build
from services.predictor.config import Settings

FEATURES = 4
EDGE = {"x-weir-tenant": "acme", "x-weir-plan": "paid", "x-weir-scopes": "inference"}
"""What the edge says of a caller."""


@lru_cache
def booster(rounds: int = 8, features: int = FEATURES, seed: int = 1) -> bytes:
    """A trained XGBoost model, as UBJ."""
    import xgboost as xgb

    rng = np.random.default_rng(seed)
    x = rng.normal(size=(256, features)).astype(np.float32)
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(int)
    data = xgb.DMatrix(x, y)
    trained = xgb.train({"objective": "binary:logistic", "max_depth": 3, "seed": seed, "nthread": 1}, data, rounds)
    return bytes(trained.save_raw("ubj"))


def trees(*, features: int = FEATURES, **more: Any) -> pb.PredictionSpec:
    """What such a model declares."""
    values: dict[str, Any] = {
        "steps": [pb.PredictionStep(format="xgboost", path="model.ubj")],
        "inputs": [pb.TensorSpec(name="features", datatype="FP32", shape=[-1, features])],
        "outputs": [pb.TensorSpec(name="score", datatype="FP32", shape=[-1])],
        "max_rows": 64,
        "profile": "classical",
    }
    return pb.PredictionSpec(**(values | more))


def question(
    rows: Sequence[Sequence[float]] | np.ndarray, model: str = "m", version: str = "", **parameters: Any
) -> oip.ModelInferRequest:
    """A request about these rows, raw."""
    matrix = np.asarray(rows, np.float32)
    request = oip.ModelInferRequest(model_name=model, model_version=version, id="7")
    request.inputs.add(name="features", datatype="FP32", shape=matrix.shape)
    request.raw_input_contents.append(matrix.tobytes())
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(request.parameters[name], kind, value)
    return request


def scores(response: oip.ModelInferResponse) -> np.ndarray:
    """The first output."""
    return np.frombuffer(response.raw_output_contents[0], np.float32)


def told(response: oip.ModelInferResponse) -> dict[str, Any]:
    """The parameters of an answer."""
    return {name: getattr(each, str(each.WhichOneof("parameter_choice"))) for name, each in response.parameters.items()}


@dataclass
class Rig:
    """A predictor that runs, and what it reads from."""

    predictor: Predictor
    stub: GRPCInferenceServiceStub
    channel: grpc.aio.Channel
    store: MemoryStore
    root: Path
    key: SigningKey
    address: str

    async def put(self, *messages: Any) -> None:
        """Register them."""
        await self.store.txn(puts=[Put(keys.key_of(each), keys.encode(each)) for each in messages])

    async def delete(self, *names: str) -> None:
        """Remove them."""
        await self.store.txn(deletes=names)

    async def pushed(
        self,
        version: str = "1",
        *,
        name: str = "m",
        alias: str = "m",
        spec: pb.PredictionSpec | None = None,
        files: dict[str, bytes] | None = None,
        signed: bool = True,
    ) -> pb.ModelVersion:
        """NAME@VERSION, signed and registered; an alias makes it wanted."""
        folder = self.root / f"{name}-{version}"
        folder.mkdir(parents=True)
        for path, content in ({"model.ubj": booster()} | (files or {})).items():
            (folder / path).write_bytes(content)
        options = Options(
            name=name, version=version, tier="fast", pool="predict", architecture="xgboost", context_length=1
        )
        made = (await push(folder, LocalBlobStore(self.root / "blobs"), options)).version
        made.prediction.CopyFrom(spec or trees())
        made.digest = manifest_digest(made)
        made.signature = sign(made, self.key) if signed else ""
        await self.put(made)
        if alias:
            await self.put(
                pb.Alias(name=alias, targets=[pb.AliasTarget(model_version=f"{name}@{version}", weight=100)])
            )
        return made

    async def loaded(self, version: str = "m@1", state: int = pb.LOAD_STATE_READY) -> pb.ModelState:
        """Wait for a version."""

        def found() -> list[pb.ModelState]:
            states = self.predictor.endpoint_extra()["model_states"]
            return [each for each in states if each.model_version == version and each.state == state]

        await until(lambda: bool(found()), 60.0)  # a process is started first, which tries it out
        return found()[0]

    @contextlib.contextmanager
    def executors_busy(self, version: str) -> Iterator[Callable[[], int]]:
        """Nothing of this version starts meanwhile. Yields how many rows wait."""
        dispatcher = self.predictor._executors._versions[version]
        idle, dispatcher._idle = dispatcher._idle, []
        try:
            yield lambda: dispatcher._batcher.rows
        finally:
            dispatcher._idle += idle
            dispatcher._soon()

    async def infer(
        self, request: oip.ModelInferRequest, *, seconds: float | None = 5.0, **headers: str
    ) -> oip.ModelInferResponse:
        """As the edge's caller; header names with "_" for "-"."""
        metadata = EDGE | {name.replace("_", "-"): value for name, value in headers.items()}
        answer: oip.ModelInferResponse = await self.stub.ModelInfer(
            request, metadata=tuple(metadata.items()), timeout=seconds
        )
        return answer


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - any condition at all
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(
    root: Path, *, books: Any = None, store: MemoryStore | None = None, **more: Any
) -> AsyncIterator[Rig]:
    """A predictor with an empty registry but for the tenant "acme", who may use everything."""
    store, key = store or MemoryStore(), make_key()
    settings = Settings(
        **(
            {
                "service": "predictor",
                "instance": "predictor-a",
                "blobs": f"file://{root}/blobs",
                "weight_cache": str(root / "cache"),
                "min_residency": 0.0,
                "lame_duck_seconds": 0.0,
            }
            | more
        )
    )
    first: list[Any] = [
        pb.Tenant(id="acme", plan=pb.PLAN_PAID),
        pb.ModelGrant(subject="all", namespaces=["default"], pinned_namespaces=["default"]),
        pb.TrustPolicy(namespace="default", keys=[key.trusted()]),
    ]
    await store.txn(puts=[Put(keys.key_of(each), keys.encode(each)) for each in first])
    predictor = await build(settings, store=store, books=books)
    async with (
        serve(predictor, settings, deadline_optional=("/inference.",)) as served,
        grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as channel,
    ):
        await served.ready.wait()
        yield Rig(predictor, GRPCInferenceServiceStub(channel), channel, store, root, key, f"127.0.0.1:{served.port}")
