"""`Client.predict` against a real predictor: arrays and lists in and out, and what is refused before it is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from weir.client import Client, Reason, RetryPolicy, WeirError
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import LocalBlobStore, Options, manifest_digest, push, sign
from libs.shipped import ROOT
from tests.support.predictor import EDGE, Rig, running, trees

ROW = [1.0] * 30


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running(tmp_path) as made:
        yield made


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[Client]:
    async with Client(rig.address, retries=RetryPolicy(attempts=1)) as made:
        made._metadata.extend(EDGE.items())  # as the edge says who calls
        yield made


async def demo(rig: Rig, name: str, alias: str = "") -> None:
    """A demo model, registered and loaded."""
    folder = ROOT / "models" / "demo" / name
    made = (await push(folder, LocalBlobStore(rig.root / "blobs"), Options())).version
    made.prediction.ClearField("smaller")
    made.digest = manifest_digest(made)
    made.signature = sign(made, rig.key)
    target = pb.AliasTarget(model_version=f"{name}@1", weight=100)
    await rig.put(made, pb.Alias(name=alias or name, targets=[target]))
    await rig.loaded(f"{name}@1")


async def test_arrays_and_lists_give_the_same(rig: Rig, client: Client) -> None:
    await demo(rig, "cancer-gbdt")
    rows = np.random.default_rng(1).uniform(0, 20, (3, 30)).astype(np.float32)
    one = await client.predict("cancer-gbdt", {"features": rows}, timeout=5)
    other = await client.predict("cancer-gbdt", {"features": rows.tolist()}, timeout=5, outputs=["probability"])
    assert one["probability"].dtype == np.float32
    assert one["probability"].tolist() == other["probability"].tolist() == other.lists()["probability"]
    assert one.version == "cancer-gbdt@1"
    assert len(one.trace_id) == 32
    assert one.degraded == ()
    assert one.batch_rows == 3
    assert {"decode", "queue", "compute"} <= set(one.stages)
    assert 0 < one.stages["compute"] < 5


async def test_columns_by_name_give_the_same_as_the_matrix(rig: Rig, client: Client) -> None:
    names = ["age", "city", "income", "tenure"]
    matrix = pb.TensorSpec(name="features", datatype="FP32", shape=[-1, 4], columns=[{"name": name} for name in names])
    await rig.pushed(spec=trees(inputs=[matrix]))
    await rig.loaded()
    rows = np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)
    columns = {name: rows[:, at] for at, name in reversed(list(enumerate(names)))}
    told = await client.predict("m", columns, timeout=5)
    assert told["score"].tolist() == (await client.predict("m", {"features": rows}, timeout=5))["score"].tolist()
    [declared] = await client.inputs("m", timeout=5)
    assert [column.name for column in declared.columns] == names
    with pytest.raises(WeirError, match="column 'city' of input 'features' is missing"):
        await client.predict("m", {"age": [1.0]}, timeout=5)


async def test_text_goes_in_and_comes_out(rig: Rig, client: Client) -> None:
    await demo(rig, "topics")
    text = ["A queue should be bounded.", b"Rain falls from clouds."]
    told = await client.predict("topics", {"text": text}, timeout=10)
    assert told.lists()["topic"] == ["systems", "nature"]
    again = await client.predict("topics", {"text": np.array(["A queue should be bounded."])}, timeout=10)
    assert again["topic"].tolist() == [b"systems"]


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({}, "'features' is missing"),
        ({"features": [ROW], "more": [1]}, "no input 'more'; it takes features"),
        ({"features": np.ones((1, 30))}, "'features' is FP32; these are float64"),
        ({"features": [["1"] * 30]}, "these are text"),
        ({"features": [[True] * 30]}, "these are bools"),
        ({"features": [[None] * 30]}, "these are mixed types"),
        ({"features": [ROW, ROW[1:]]}, "rows of different lengths"),
        ({"features": [ROW[1:]]}, r"shape \[1, 29\] does not fit \[-1, 30\]"),
        ({"features": ROW}, r"shape \[30\] does not fit"),
        ({"features": [[1e39, *ROW[1:]]]}, r"element at \[0, 0\] does not fit FP32"),
    ],
)
async def test_what_does_not_fit_is_refused_by_name(rig: Rig, client: Client, inputs: dict[str, Any], why: str) -> None:
    await demo(rig, "cancer-linear")
    with pytest.raises(WeirError, match=why) as refused:
        await client.predict("cancer-linear", inputs, timeout=5)
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert refused.value.limit in ("features", "more")


async def test_an_alias_that_leads_elsewhere_is_asked_about_again(rig: Rig, client: Client) -> None:
    await demo(rig, "cancer-linear", alias="best")
    assert (await client.predict("best", {"features": [ROW]}, timeout=5)).version == "cancer-linear@1"
    await demo(rig, "digits-int8", alias="best")
    told = await client.predict("best", {"image": np.zeros((1, 64), np.float32)}, timeout=5)
    assert told.version == "digits-int8@1"
    assert told["digit"].dtype == np.int64


async def test_the_mesh_s_refusals_are_typed(rig: Rig, client: Client) -> None:
    with pytest.raises(WeirError) as unknown:
        await client.predict("nothing", {"x": [1]}, timeout=5)
    assert unknown.value.reason is Reason.MODEL_NOT_FOUND
    await demo(rig, "cancer-linear")
    with pytest.raises(WeirError) as refused:
        await client.predict("cancer-linear", {"features": [ROW]}, timeout=5, outputs=["odds"])
    assert refused.value.reason is Reason.INVALID_REQUEST
