"""A prediction under an idempotency key is made once, and given again, by another predictor as well."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from inference import open_inference_pb2 as oip

from libs.cursor import new_key
from libs.errors import Reason, from_rpc_error
from services.predictor import metrics
from services.predictor.config import Targets
from tests.support.predictor import EDGE, Rig, question, running, scores
from tests.support.records import records_service

X = np.arange(12, dtype=np.float32).reshape(3, 4)
NOBODY = 1
"""The port of an audit service that is away: answers do not need it."""


async def asked(rig: Rig, request: oip.ModelInferRequest, key: str = "k") -> tuple[oip.ModelInferResponse, bool]:
    """The answer, and whether it is one that was given before."""
    call = rig.stub.ModelInfer(request, metadata=(*EDGE.items(), ("idempotency-key", key)), timeout=20)
    answer = await call
    trailers: Any = await call.trailing_metadata()
    told = dict(trailers)
    assert told.get("x-weir-original-request-id", told["x-request-id"]) == told["x-request-id"]
    return answer, told.get("idempotent-replayed") == "true"


def refused(error: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> tuple[Reason, str]:
    found = from_rpc_error(error.value)
    return found.reason, found.limit


def conflicts() -> float:
    return metrics.IDEMPOTENCY.labels("conflict")._value.get()


def made(rig: Rig) -> int:
    """Rows that were computed."""
    return rig.predictor.statistics.of("m@1").rows


@contextlib.asynccontextmanager
async def predictor(root: Path, name: str, records: int) -> AsyncIterator[Rig]:
    keys = root / "keys"
    if not keys.exists():
        keys.write_text(f"{new_key().hex()}\n")
    targets = Targets(records=f"127.0.0.1:{records}")
    async with running(root / name, instance=name, idempotency_keys=str(keys), targets=targets) as rig:
        await rig.pushed()
        await rig.loaded()
        yield rig


async def test_the_same_request_is_answered_once(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.pushed()
        await rig.loaded()
        before = made(rig)
        both = await asyncio.gather(*(asked(rig, question(X)) for _ in range(2)))
        assert sorted(replayed for _, replayed in both) == [False, True]
        again = question(X)
        again.id = "another time"
        answer, replayed = await asked(rig, again)
        assert replayed
        assert [scores(each).tolist() for each, _ in both] == [scores(answer).tolist()] * 2
        assert made(rig) == before + len(X)
        told = conflicts()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await asked(rig, question(X + 1))
        assert refused(error) == (Reason.IDEMPOTENCY_CONFLICT, "idempotency_key")
        assert conflicts() == told + 1
        assert not (await asked(rig, question(X + 1), "other"))[1]


async def test_what_was_refused_stands_for_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.pushed()
        await rig.loaded()
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await asked(rig, question(X[:, :2]))
            assert refused(error)[0] is Reason.INVALID_REQUEST
        assert not (await asked(rig, question(X)))[1]
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await asked(rig, question(X), "k" * 256)
        assert refused(error) == (Reason.INVALID_REQUEST, "idempotency_key")


async def test_another_predictor_gives_it_again(tmp_path: Path) -> None:
    async with records_service(tmp_path / "records", NOBODY) as records:
        async with predictor(tmp_path, "predictor-a", records.port) as rig:
            first, _ = await asked(rig, question(X))
        async with predictor(tmp_path, "predictor-b", records.port) as rig:
            before = made(rig)
            again, replayed = await asked(rig, question(X))
            assert replayed
            assert again == first
            assert made(rig) == before
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await asked(rig, question(X + 1))
            assert refused(error)[0] is Reason.IDEMPOTENCY_CONFLICT


async def test_while_nobody_knows_what_a_key_stands_for_it_is_refused(tmp_path: Path) -> None:
    async with predictor(tmp_path, "predictor-a", NOBODY) as rig:
        before = made(rig)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await asked(rig, question(X))
        assert refused(error) == (Reason.DEPENDENCY_UNAVAILABLE, "idempotency_key")
        assert made(rig) == before
        await rig.infer(question(X))
        assert made(rig) == before + len(X)
