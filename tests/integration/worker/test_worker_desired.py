"""A worker that has ready what a real etcd says, from a real blob store on disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb
from worker_support import Rig, rig, submission, until

from libs.artifacts import LocalBlobStore, Options, SigningKey, make_key, manifest_digest, push, sign
from libs.registry import EtcdStore, Put, RegistryView, keys
from services.worker import metrics
from services.worker.config import TorchOptions
from services.worker.engines.port import EngineLoadError
from services.worker.engines.simulated import SimulatedEngine
from tests.support.etcd import EtcdServer

READY, FAILED = pb.LOAD_STATE_READY, pb.LOAD_STATE_FAILED


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.stop()


@dataclass
class World:
    """A registry, a blob store and folders to push from."""

    store: EtcdStore
    address: str
    root: Path
    key: SigningKey = field(default_factory=make_key)
    view: Any = None

    @property
    def blobs(self) -> LocalBlobStore:
        return LocalBlobStore(self.root / "blobs")

    async def put(self, *messages: Any) -> None:
        await self.store.txn(puts=[Put(keys.key_of(each), keys.encode(each)) for each in messages])

    async def delete(self, *names: str) -> None:
        await self.store.txn(deletes=names)

    async def trust(self, *signers: SigningKey) -> None:
        await self.put(pb.TrustPolicy(namespace="default", keys=[each.trusted() for each in signers]))

    async def pushed(
        self, version: str, *, folder: Path | None = None, alias: str = "", **files: Any
    ) -> pb.ModelVersion:
        """Version m@VERSION, signed and registered; an alias makes it wanted."""
        where = folder or self.folder(version, files)
        found = await push(where, self.blobs, Options(name="m", version=version, tier="fast", pool="p"), [self.key])
        await self.put(found.version)
        if alias:
            await self.point(alias, version)
        return found.version

    def folder(self, version: str, files: dict[str, Any]) -> Path:
        where = self.root / f"m-{version}"
        where.mkdir()
        config = {
            "vocab_size": 600,
            "max_position_embeddings": 200,
            "architectures": ["LlamaForCausalLM"],
            "eos_token_id": 2,
        }
        contents = {"config": config, "about": {"version": version}} | files
        for name, content in contents.items():
            (where / f"{name}.json").write_text(json.dumps(content))
        return where

    async def point(self, alias: str, version: str) -> None:
        await self.put(pb.Alias(name=alias, targets=[pb.AliasTarget(model_version=f"m@{version}", weight=100)]))

    def states(self) -> dict[str, pb.ModelState]:
        """What the worker's endpoint tells."""
        endpoint = self.view.snapshot.endpoints.get(("worker", "worker-a"))
        return {each.model_version: each for each in endpoint.model_states} if endpoint is not None else {}

    def served(self) -> list[str]:
        endpoint = self.view.snapshot.endpoints.get(("worker", "worker-a"))
        return list(endpoint.model_versions) if endpoint is not None else []

    async def reached(self, version: str, state: int) -> pb.ModelState:
        name = f"m@{version}"
        await until(lambda: name in self.states() and self.states()[name].state == state)
        return self.states()[name]

    async def gone(self, version: str) -> None:
        await until(lambda: self.view.snapshot.endpoints and f"m@{version}" not in self.states())


@pytest.fixture
async def world(etcd, tmp_path) -> AsyncIterator[World]:
    store = EtcdStore((etcd.endpoint,))
    view = RegistryView(store)
    following = asyncio.create_task(view.run())
    yield World(store, etcd.endpoint, tmp_path, view=view)
    following.cancel()
    await asyncio.wait((following,))
    listing = await store.get_prefix(keys.EVERYTHING)
    for each in listing.kvs:
        await store.txn(deletes=[each.key])
    await store.close()


@contextlib.asynccontextmanager
async def worker(world: World, **changes: Any) -> AsyncIterator[Rig]:
    chosen = {
        "pool": "p",
        "models": {},
        "etcd": (world.address,),
        "blobs": f"file://{world.root}/blobs",
        "weight_cache": str(world.root / "cache"),
        "min_residency": 0.0,
        "require_grants": False,
        "require_signatures": False,
        "simulated": {"vocabulary": 0, "max_context": 0},
    }
    async with rig(fixed=False, **(chosen | changes)) as running:
        address = pb.Endpoint(service="admission", instance="a-0", address=f"127.0.0.1:{running.admission.port}")
        await world.put(address)
        yield running


async def answer(
    r: Rig, version: str, *, tokens: int = 4, handle: int = 1, prompt: list[int] | None = None
) -> list[int]:
    gateway = await r.gateway()
    changes: dict[str, Any] = {"model_version": f"m@{version}", "sampling": {"max_tokens": tokens}}
    await gateway.submit(submission(handle, None, f"r-{version}", prompt=prompt or [7, 8, 9], **changes))
    await gateway.until(lambda: handle in gateway.finished or handle in gateway.refused)
    assert handle not in gateway.refused, gateway.refused
    return gateway.tokens[handle]


async def test_an_empty_registry_leaves_the_worker_ready_with_nothing_and_a_pushed_version_is_served(world):
    async with worker(world) as r:
        await until(lambda: ("worker", "worker-a") in world.view.snapshot.endpoints)
        assert world.served() == []
        assert not r.admission.hellos  # there is nothing to place here
        version = await world.pushed("1", alias="m")
        state = await world.reached("1", READY)
        assert state.digest == version.digest == manifest_digest(version)
        assert world.served() == ["m@1"]
        await until(lambda: r.admission.hellos)
        assert list(r.admission.hellos[0].model_versions) == ["m@1"]
        assert (r.admission.hellos[0].max_context, r.admission.hellos[0].worker) == (200, "worker-a")
        assert len(await answer(r, "1")) == 4
        assert metrics.MODELS.state.labels("m@1", "ready")._value.get() == 1
        assert {stage for model, stage in metrics.MODELS.load_seconds._counts if model == "m@1"} >= {"fetch", "read"}


async def test_a_worker_that_starts_later_is_ready_once_it_serves(world):
    await world.pushed("1", alias="m")
    async with worker(world) as r:
        assert r.supervised.info.models == ("m@1",)
        await world.reached("1", READY)


async def test_versions_come_and_go_with_the_registry_and_admission_hears_of_it(world):
    await world.pushed("1", alias="m")
    async with worker(world) as r:
        await until(lambda: r.admission.hellos)
        await world.pushed("2")
        await world.put(pb.Pin(model_version="m@2", reason="a test", warm=True))
        await world.reached("2", READY)
        await until(lambda: any(set(each.model_versions) == {"m@1", "m@2"} for each in r.admission.reports))
        await world.delete(keys.key("pins", "m@2"))
        await world.gone("2")
        await until(lambda: r.supervised.info.models == ("m@1",))
        await until(lambda: not r.admission.reports[-1].model_versions)  # as Hello said
        assert len(r.admission.hellos) == 1
        assert not r.admission.reports[-1].draining
        await world.delete(keys.key("aliases", "m"))
        await world.gone("1")
        await until(lambda: r.admission.reports[-1].draining)


async def test_a_stream_runs_exactly_while_another_version_comes_and_goes(world):
    await world.pushed("1", alias="m")
    async with worker(world, simulated={"vocabulary": 0, "max_context": 0, "step_interval": 0.002}) as r:
        whole = await answer(r, "1", tokens=180)
        gateway = await r.gateway()
        await gateway.submit(submission(5, None, "long", model_version="m@1", sampling={"max_tokens": 180}))
        await gateway.until(lambda: 5 in gateway.tokens)
        await world.pushed("2", alias="other")
        await world.reached("2", READY)
        assert 5 not in gateway.finished
        # Nothing wants version 1 any more, but it goes only when its stream has ended.
        await world.point("m", "2")
        await gateway.until(lambda: 5 in gateway.finished)
        assert gateway.tokens[5] == whole
        await world.gone("1")
        assert await answer(r, "2", tokens=180) == whole  # versions of one vocabulary agree, unless told otherwise


async def test_a_tampered_file_is_refused_by_name_and_not_asked_for_again(world):
    await world.pushed("1", alias="m")
    bad = await world.pushed("2")
    about = next(each for each in bad.artifacts if each.path == "about.json")
    blob = world.root / "blobs" / "sha256" / about.sha256[:2] / about.sha256
    blob.chmod(0o644)
    blob.write_bytes(b"X" * about.bytes)
    failures = metrics.MODELS.failures.labels("blob")._value.get()
    async with worker(world) as r:
        await world.point("other", "2")
        state = await world.reached("2", FAILED)
        assert "m@2: about.json" in state.detail
        assert world.served() == ["m@1"]
        assert len(await answer(r, "1")) == 4
        await world.pushed("3", alias="third")  # a change of the registry, and no reason to try version 2 again
        await world.reached("3", READY)
        assert metrics.MODELS.failures.labels("blob")._value.get() == failures + 1


async def test_what_no_trusted_key_signed_is_refused_until_the_policy_changes(world):
    stranger = make_key()
    await world.trust(stranger)
    await world.pushed("1", alias="m")
    async with worker(world):
        state = await world.reached("1", FAILED)
        assert "no key that signed it is trusted" in state.detail
        assert world.served() == []
        assert not list((world.root / "cache" / "objects").iterdir())  # nothing of it was even fetched
        await world.trust(stranger, world.key)
        await world.reached("1", READY)


async def test_a_record_that_was_changed_after_it_was_signed_is_refused(world):
    await world.trust(world.key)
    version = await world.pushed("1", alias="m")
    version.context_length += 1
    version.digest = manifest_digest(version)
    await world.put(version)
    async with worker(world):
        state = await world.reached("1", FAILED)
        assert "what was signed is another manifest" in state.detail
        version.signature = sign(version, world.key)
        await world.put(version)
        await world.reached("1", READY)


async def test_without_a_trust_policy_a_worker_may_insist_on_signatures(world):
    await world.pushed("1", alias="m")
    async with worker(world, require_signatures=True):
        state = await world.reached("1", FAILED)
        assert "has no trust policy" in state.detail


async def test_a_missing_safety_policy_is_named_and_its_arrival_is_noticed(world):
    version = await world.pushed("1", alias="m")
    version.safety_policies[:] = ["strict@2"]
    version.digest = manifest_digest(version)
    version.signature = sign(version, world.key)
    await world.put(version, pb.SafetyPolicy(id="strict", version="1"))
    async with worker(world):
        state = await world.reached("1", FAILED)
        assert "there is no safety policy 'strict@2'" in state.detail
        await world.put(pb.SafetyPolicy(id="strict", version="2"))
        await world.reached("1", READY)


async def test_a_blob_that_is_missing_is_asked_for_again(world):
    version = await world.pushed("1", alias="m")
    lost = world.root / "blobs" / "sha256" / version.artifacts[0].sha256[:2]
    shutil.move(lost, world.root / "lost")
    async with worker(world):
        state = await world.reached("1", FAILED)
        assert version.artifacts[0].path in state.detail
        shutil.move(world.root / "lost", lost)
        await world.reached("1", READY)


async def test_files_elsewhere_are_not_fetched(world):
    version = await world.pushed("1", alias="m")
    version.source = "models/demo/fast"
    version.digest, version.signature = manifest_digest(version), ""
    await world.put(version)
    async with worker(world):
        assert "not the blob store" in (await world.reached("1", FAILED)).detail


class Gated(SimulatedEngine):
    """Loads version 2 only when told."""

    gate = asyncio.Event()
    begun = asyncio.Event()

    async def load(self, model: str, folder: str) -> dict[str, float]:
        if model == "m@2":
            self.begun.set()
            await self.gate.wait()
        return await super().load(model, folder)


def gated(on_failure: Any) -> Gated:
    from libs.clock import SystemClock
    from services.worker.engines.simulated_model import SimulatedModel

    Gated.gate, Gated.begun = asyncio.Event(), asyncio.Event()
    return Gated(SimulatedModel(models=(), vocabulary=600, max_context=200), clock=SystemClock())


async def test_a_version_that_vanishes_while_it_is_loaded_is_loaded_no_further(world):
    await world.pushed("1", alias="m")
    async with worker(world, make_engine=gated) as r:
        await world.pushed("2", alias="other")
        await Gated.begun.wait()
        await world.reached("2", pb.LOAD_STATE_LOADING)
        await world.delete(keys.key("aliases", "other"), keys.key("models", "m@2"))
        await world.gone("2")
        await world.pushed("3", alias="third")  # nobody waits for the one that was given up
        await world.reached("3", READY)
        assert r.supervised.info.models == ("m@1", "m@3")


async def test_a_restarted_engine_has_the_same_versions(world):
    await world.pushed("1", alias="m")
    await world.pushed("2", alias="other")
    failures: list[Any] = []

    def make(on_failure: Any) -> Gated:
        failures.append(on_failure)
        engine = gated(on_failure)
        engine.gate.set()
        return engine

    async with worker(world, make_engine=make, engine_restart_delay=0.0) as r:
        await world.reached("1", READY)
        await world.reached("2", READY)
        first = r.engine
        failures[0](RuntimeError("device lost"))
        await until(lambda: r.engine is not first and r.supervised.up)
        assert set(r.supervised.info.models) == {"m@1", "m@2"}
        assert len(await answer(r, "2")) == 4


async def test_a_version_that_a_restarted_engine_cannot_load_has_failed(world):
    await world.pushed("1", alias="m")
    await world.pushed("2", alias="other")
    failures: list[Any] = []

    class Choosy(SimulatedEngine):
        async def load(self, model: str, folder: str) -> dict[str, float]:
            if model == "m@2" and len(failures) > 1:
                raise EngineLoadError(f"{model}: a row of its weights is gone")
            return await super().load(model, folder)

    def make(on_failure: Any) -> SimulatedEngine:
        from libs.clock import SystemClock
        from services.worker.engines.simulated_model import SimulatedModel

        failures.append(on_failure)
        return Choosy(SimulatedModel(models=(), vocabulary=600, max_context=200), clock=SystemClock())

    async with worker(world, make_engine=make, engine_restart_delay=0.0) as r:
        await world.reached("2", READY)
        failures[0](RuntimeError("device lost"))
        assert "a row of its weights is gone" in (await world.reached("2", FAILED)).detail
        await until(lambda: world.served() == ["m@1"])
        assert len(await answer(r, "1")) == 4


async def test_a_pushed_version_may_say_how_bad_it_is_on_the_simulated_engine(world):
    await world.pushed("1", alias="m")
    await world.pushed("2", alias="other", simulated={"garble": True, "error_rate": 0.0})
    await world.pushed("3", alias="third", simulated={"errors": 0.5})
    async with worker(world) as r:
        await world.reached("2", READY)
        assert "simulated.json" in (await world.reached("3", FAILED)).detail
        assert await answer(r, "1", tokens=20) != await answer(r, "2", tokens=20)


async def test_fixed_models_stay_beside_what_the_registry_wants(world):
    async with worker(world, models={"m@1": ""}) as r:
        await world.pushed("2", alias="other")
        await world.reached("2", READY)
        assert r.supervised.info.models == ("m@1", "m@2")
        assert world.states()["m@1"].state == READY


async def test_the_torch_engine_serves_what_was_pushed(world):
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, initializer_range=0.15,
    )  # fmt: skip
    folder = world.root / "tiny"
    transformers.LlamaForCausalLM(config).eval().float().save_pretrained(folder)
    await world.pushed("1", folder=folder, alias="m")
    options = TorchOptions(block_size=4, total_blocks=64, max_running=4)
    async with worker(world, engine="torch", torch=options) as r:
        await world.reached("1", READY)
        whole = await answer(r, "1", tokens=20)
        await world.pushed("2", folder=folder, alias="other")
        await world.reached("2", READY)
        assert await answer(r, "2", tokens=20) == whole
        stages = {stage for model, stage in metrics.MODELS.load_seconds._counts if model == "m@2"}
        assert stages >= {"fetch", "signature", "read", "build", "warm_up", "self_test"}


async def test_a_served_version_that_is_no_longer_trusted_is_taken_out_and_comes_back_when_it_is(world):
    stranger = make_key()
    await world.trust(stranger, world.key)
    await world.pushed("1", alias="m")
    async with worker(world, simulated={"vocabulary": 0, "max_context": 0, "step_interval": 0.002}) as r:
        gateway = await r.gateway()
        await gateway.submit(submission(5, None, "long", model_version="m@1", sampling={"max_tokens": 180}))
        await gateway.until(lambda: 5 in gateway.tokens)
        failures = metrics.MODELS.failures.labels("signature")._value.get()
        await world.trust(stranger)
        state = await world.reached("1", FAILED)
        assert "m@1: no key that signed it is trusted" in state.detail
        await until(lambda: world.served() == [])
        assert metrics.MODELS.failures.labels("signature")._value.get() == failures + 1
        await gateway.until(lambda: 5 in gateway.finished)  # what was promised is kept
        assert len(gateway.tokens[5]) == 180
        await world.trust(stranger, world.key)
        await world.reached("1", READY)
        await until(lambda: world.served() == ["m@1"])


async def test_a_key_that_expires_at_once_counts_no_more_on_a_worker_whose_clock_is_behind(world):
    await world.trust(world.key)
    await world.pushed("1", alias="m")
    async with worker(world):
        await world.reached("1", READY)
        ended = world.key.trusted()
        ended.expires_at.FromNanoseconds(time.time_ns() + 5_000_000_000)  # now, by a clock that is 5 s ahead
        await world.put(pb.TrustPolicy(namespace="default", keys=[ended]))
        assert "is not trusted any more" in (await world.reached("1", FAILED)).detail


async def test_a_further_signature_leaves_a_served_version_where_it_is(world):
    await world.trust(world.key)
    version = await world.pushed("1", alias="m")
    async with worker(world) as r:
        await world.reached("1", READY)
        other = make_key()
        version.signature = sign(version, other)
        await world.put(version)
        await world.trust(world.key, other)
        await world.pushed("2", alias="second")
        await world.reached("2", READY)
        assert world.states()["m@1"].state == READY
        assert set(r.supervised.info.models) == {"m@1", "m@2"}


async def test_an_old_failure_is_forgotten_while_another_version_is_loaded(world):
    bad = await world.pushed("3")
    bad.signature = sign(await world.pushed("4"), world.key)
    await world.trust(world.key)
    await world.put(bad)
    await world.pushed("1", alias="m")
    async with worker(world, make_engine=gated):
        await world.point("third", "3")
        await world.reached("3", FAILED)
        await world.pushed("2", alias="other")
        await Gated.begun.wait()
        await world.delete(keys.key("aliases", "third"))
        await world.gone("3")  # though version 2 is still on its way
        assert world.states()["m@2"].state == pb.LOAD_STATE_LOADING
        Gated.gate.set()


async def test_a_new_rollout_has_a_failed_version_tried_again(world):
    tries: list[str] = []

    class Choosy(SimulatedEngine):
        async def load(self, model: str, folder: str) -> dict[str, float]:
            tries.append(model)
            if tries.count("m@2") == 1 and model == "m@2":
                raise EngineLoadError(f"{model}: no room")
            return await super().load(model, folder)

    def make(on_failure: Any) -> SimulatedEngine:
        from libs.clock import SystemClock
        from services.worker.engines.simulated_model import SimulatedModel

        return Choosy(SimulatedModel(models=(), vocabulary=600, max_context=200), clock=SystemClock())

    await world.pushed("1", alias="m")
    await world.pushed("2")
    await world.put(pb.Pin(model_version="m@2", reason="a test", warm=True))
    async with worker(world, make_engine=make):
        await world.reached("2", FAILED)
        state = pb.RolloutState(phase=pb.ROLLOUT_PHASE_PREPARING)
        arms = [pb.RolloutArm(name="canary", model_version="m@2")]
        await world.put(pb.Rollout(alias="m", id="r-2", baseline="m@1", arms=arms, state=state))
        await world.reached("2", READY)


async def test_a_fetch_that_is_given_up_ends_soon(world, monkeypatch):
    fetching, ended = asyncio.Event(), asyncio.Event()

    async def endless(self: LocalBlobStore, digest: str, sink: Any) -> int:
        fetching.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 0

    await world.pushed("1", alias="m")
    with monkeypatch.context() as patched:
        patched.setattr(LocalBlobStore, "get", endless)
        running = contextlib.AsyncExitStack()
        starting = asyncio.create_task(running.enter_async_context(worker(world)))
        await fetching.wait()
        await world.delete(keys.key("aliases", "m"))
        await starting  # nothing is wanted any more, so the worker is there
        await ended.wait()
    async with running:
        await world.point("m", "1")  # nobody holds the cache's lock for the version any longer
        await world.reached("1", READY)


async def test_e5_a_rollback_does_not_wait_for_a_candidates_files(world, monkeypatch):
    fetching = asyncio.Event()
    whole = LocalBlobStore.get
    await world.pushed("1", alias="m")
    slow = await world.pushed("2")
    held_back = {each.sha256 for each in slow.artifacts} - {each.sha256 for each in (await world.pushed("3")).artifacts}

    async def get(self: LocalBlobStore, digest: str, sink: Any) -> int:
        if digest in held_back:
            fetching.set()
            await asyncio.Event().wait()
        return await whole(self, digest, sink)

    async with worker(world) as r:
        await world.reached("1", READY)
        await world.point("m", "3")
        await world.reached("3", READY)
        await world.gone("1")
        monkeypatch.setattr(LocalBlobStore, "get", get)
        await world.put(pb.Pin(model_version="m@2", reason="a candidate", warm=True))
        await fetching.wait()
        await world.point("m", "1")
        await world.reached("1", READY)
        assert world.states()["m@2"].state == pb.LOAD_STATE_FETCHING
        assert len(await answer(r, "1")) == 4
        await world.delete(keys.key("pins", "m@2"))
        await world.gone("2")
        await world.gone("3")
