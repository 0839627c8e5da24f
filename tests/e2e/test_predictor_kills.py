"""Predictors killed while they answer: each caller is told one thing, in time, and it is charged once; a version that
has lost all its processes is stood in for, or says that it is away, and comes back."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import numpy as np
import pytest
from inference import open_inference_pb2 as oip
from inference.open_inference_pb2_grpc import GRPCInferenceServiceStub

from libs.errors import Reason, WeirError, from_rpc_error, http_status
from loadtest.predict.graphs import echo
from tests.e2e.test_operations import gauge
from tests.support.mesh import Mesh, eventually

PREDICTORS = ("predictor-a", "predictor-b")
MIB = 2**20
ROOM = 24 * MIB
"""What predictor-b's disk has for model files: for all demo models, and for no version with more BALLAST."""
BALLAST = ROOM + MIB
CALL_SECONDS = 60.0
RUN_SECONDS = 0.2
"""Of a batch of the burst: long beside what passes until it is seen that one runs."""
GONE = (Reason.NO_WORKERS, Reason.DEPENDENCY_UNAVAILABLE, Reason.DRAINING, Reason.WORKER_LOST)
"""What a caller may hear of a process that is away: all are 503, and say that another try may help."""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("predictors")
    settings = (
        f"predictor-b.weight_cache={folder / 'narrow'}",
        f"predictor-b.weight_cache_bytes={ROOM}",
        "worker.simulated.step_interval=0.02",
    )
    with Mesh(folder / "mesh", profile="simulated", settings=settings) as running:
        for name, how in VERSIONS.items():
            running.weir("models", "push", str(echo(folder / name, **how)), "--name", name, "--version", "1")
        for alias, name in (*zip(VERSIONS, VERSIONS, strict=True), (BURST, "small")):
            target = f"targets=[{{model_version: {name}@1, weight: 100}}]"
            running.weir("set", "aliases", alias, target, "--create")
        running.weir("set", "prices", BURST, "row_microusd_per_million=1000000", "--create")
        for predictor, name in itertools.product(PREDICTORS, VERSIONS):
            wanted = "failed" if predictor == PREDICTORS[1] and name in ("large", "bare") else "ready"
            eventually(
                lambda predictor=predictor, name=name, wanted=wanted: state(running, predictor, name) == wanted,
                seconds=180,
                what=f"{name} being {wanted} at {predictor}",
            )
        yield running


VERSIONS: dict[str, dict[str, Any]] = {
    "small": {},
    "large": {"ballast": BALLAST, "smaller": ("small@1",)},
    "bare": {"ballast": BALLAST},
}
"""Versions that echo: one that every predictor has, and two that predictor-a alone has, with a ladder and without."""
BURST = "burst"
"""Another alias of the first one, whose rows cost a micro-dollar each."""


def state(mesh: Mesh, predictor: str, name: str) -> str:
    rows = mesh.weir_json("predictors")["predictors"]
    return next((row["state"] for row in rows if (row["predictor"], row["version"]) == (predictor, f"{name}@1")), "")


@dataclass(frozen=True)
class Told:
    """What a caller was told."""

    number: int
    rows: int
    answer: oip.ModelInferResponse | None
    error: WeirError | None
    request_id: str
    seconds: float

    @property
    def parameters(self) -> dict[str, str]:
        given = self.answer.parameters if self.answer is not None else {}
        return {name: each.string_param for name, each in given.items() if each.string_param}


class Callers:
    """Of the edge, over gRPC with a key, who never try again."""

    def __init__(self, stub: GRPCInferenceServiceStub, key: str) -> None:
        self._stub = stub
        self._key = key

    async def ask(
        self, model: str, number: int, *, rows: int = 1, turns: float = 0, routed: bool = True, degradable: bool = True
    ) -> Told:
        """Rows of this number; `routed`: the edge is told the model's name, too."""
        request = oip.ModelInferRequest(model_name=model, id=str(number))
        request.inputs.add(name="x", datatype="FP32", shape=[rows, 2])
        request.raw_input_contents.append(np.array([[number, turns]] * rows, np.float32).tobytes())
        request.parameters["degradable"].bool_param = degradable
        headers = [("authorization", f"Bearer {self._key}"), *([("x-weir-model", model)] if routed else [])]
        began = time.monotonic()
        call = self._stub.ModelInfer(request, metadata=headers, timeout=CALL_SECONDS)
        answer, error = None, None
        try:
            answer = await call
        except grpc.aio.AioRpcError as failure:
            error = from_rpc_error(failure)
        trailers = dict(await call.trailing_metadata() or ())
        return Told(number, rows, answer, error, trailers.get("x-request-id", ""), time.monotonic() - began)


@asynccontextmanager
async def calling(mesh: Mesh) -> AsyncIterator[Callers]:
    credentials = grpc.ssl_channel_credentials(await asyncio.to_thread(Path(mesh.env["WEIR_CA"]).read_bytes))
    address = urlsplit(mesh.env["WEIR_EDGE_TLS_URL"]).netloc
    async with grpc.aio.secure_channel(address, credentials) as channel:
        yield Callers(GRPCInferenceServiceStub(channel), mesh.env["WEIR_KEY_ACME"])


def check(told: Told) -> None:
    """It is its own caller's answer, or a reason to come again, and in time."""
    assert told.seconds < CALL_SECONDS
    if told.answer is None:
        assert told.error is not None
        assert told.error.reason in GONE, told.error
        return
    assert told.answer.id == str(told.number)
    [tensor] = told.answer.outputs
    [raw] = told.answer.raw_output_contents
    assert (tensor.name, list(tensor.shape)) == ("y", [told.rows])
    assert np.frombuffer(raw, np.float32).tolist() == [2 * told.number + 1] * told.rows


async def turns_for(callers: Callers, seconds: float) -> float:
    """So many turns of the loop keep this machine busy for about so long."""
    turns, took = 5_000.0, 0.0
    while took < seconds / 4:
        turns *= 2
        took = (await callers.ask("small", 1, turns=turns)).seconds
    return turns * seconds / took


def usage(mesh: Mesh, model: str) -> tuple[int, int]:
    """Rows and micro-dollars of a model, by the audit log."""
    rows = mesh.weir_json("usage", "show", "--by", "model", "--tenant", "acme")["rows"]
    own = [row for row in rows if row["model"] == model]
    return sum(int(row["rows"]) for row in own), sum(int(row["spend_microusd"]) for row in own)


async def test_a_predictor_killed_in_mid_batch_answers_nobody_twice_or_for_another_and_costs_nothing(
    mesh: Mesh, tmp_path: Path
) -> None:
    async with calling(mesh) as callers:
        turns = await turns_for(callers, RUN_SECONDS)
        victim = PREDICTORS[1]

        def busy() -> bool:
            return gauge(mesh, victim, "weir_predictor_active_requests") > 0

        told: list[Told] = []
        killed = 0
        while not killed:
            await asyncio.to_thread(eventually, lambda: not busy(), what="quiet before the burst")
            burst = [
                asyncio.create_task(
                    callers.ask(BURST, number, rows=1 + number % 3, turns=turns + number, routed=number % 2 == 0)
                )
                for number in range(1, 17)
            ]

            def begun(burst: list[asyncio.Task[Told]] = burst) -> bool:
                return busy() or all(each.done() for each in burst)

            await asyncio.to_thread(eventually, begun, what="a batch that runs")
            if not any(each.done() for each in burst[-4:]):
                killed = mesh.kill(victim)
            told += await asyncio.gather(*burst)
            turns *= 2  # where the burst was over before the kill, the next one takes longer
    for each in told:
        check(each)
    answered = [each for each in told if each.answer is not None]
    # Nothing came of what the killed one held: others were asked the same again.
    assert len(answered) >= len(told) * 0.9, Counter(each.error.reason.name for each in told if each.error)
    assert len({each.request_id for each in answered}) == len(answered)
    await asyncio.to_thread(mesh.wait_back, victim, killed)
    delivered = tmp_path / "delivered"
    lines = [{"request_id": each.request_id, "rows": each.rows} for each in answered]
    delivered.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")

    def agree() -> bool:
        return mesh.weir("usage", "reconcile", "--delivered", str(delivered), check=False).returncode == 0

    def lost() -> list[dict[str, Any]]:
        records = (each["record"] for each in mesh.weir_json("audit", "tail", "-n", "500")["records"])
        return [each["request"] for each in records if each.get("request", {}).get("outcome") == "predictor_lost"]

    rows = sum(each.rows for each in answered)
    await asyncio.to_thread(eventually, lost, what="the records of what the killed one had begun")
    await asyncio.to_thread(eventually, agree, what="the books agreeing with what was delivered")
    await asyncio.to_thread(eventually, lambda: usage(mesh, BURST) == (rows, rows), what="each row charged once")
    assert all(not int(each.get("rows", 0)) for each in lost())
    assert mesh.weir_json("audit", "verify")["ok"]


async def test_a_version_that_lost_all_its_predictors_is_stood_in_for_and_comes_back(mesh: Mesh) -> None:
    async with calling(mesh) as callers:
        for name in VERSIONS:
            assert (await callers.ask(name, 3)).parameters["weir_version"] == f"{name}@1"
        killed = mesh.kill(PREDICTORS[0])
        seen: list[tuple[str, str]] = []
        refused: list[WeirError] = []
        async with asyncio.timeout(180):
            for attempt in itertools.count():
                asked = [
                    await callers.ask(model, 5, routed=attempt % 2 == 0, degradable=degradable)
                    for model, degradable in (("large", True), ("large", False), ("bare", True))
                ]
                for each in asked:
                    check(each)
                refused += (each.error for each in asked if each.error is not None)
                given = [
                    (each.parameters["weir_version"], each.parameters.get("weir_degraded", ""))
                    for each in asked
                    if each.answer is not None
                ]
                seen += given
                if given == [("large@1", ""), ("large@1", ""), ("bare@1", "")]:
                    break
                await asyncio.sleep(0.05)
    # Nobody else has it: whoever says so had it again.
    assert set(seen) == {("large@1", ""), ("bare@1", ""), ("small@1", "smaller_version")}
    assert refused, "the version without a ladder was answered while nobody had it"
    assert {error.reason for error in refused} <= set(GONE)
    assert {http_status(error.reason) for error in refused} == {503}
    assert not [error for error in refused if not error.retry_after], Counter(map(repr, refused))
    mesh.wait_back(PREDICTORS[0], killed)


async def test_without_any_predictor_callers_hear_so_at_once_and_are_served_when_there_is_one(mesh: Mesh) -> None:
    olds = {name: mesh.kill(name) for name in PREDICTORS}
    async with calling(mesh) as callers:
        told = await callers.ask("small", 3)
        check(told)
        assert told.error is not None
        assert told.error.retry_after
        assert http_status(told.error.reason) == 503
        assert told.seconds < CALL_SECONDS / 2
        async with asyncio.timeout(180):
            while (told := await callers.ask("small", 4)).answer is None:
                check(told)
                await asyncio.sleep(0.05)
        check(told)
    for name, old in olds.items():
        mesh.wait_back(name, old)
