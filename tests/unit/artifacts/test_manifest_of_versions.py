"""The canonical manifest and the digest of a model version."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import folder_manifest, manifest_bytes, manifest_digest
from libs.artifacts.manifest import inside

OLDER = pb.ModelVersion(
    name="weir-fast",
    version="1",
    artifacts=[pb.Artifact(path="model.safetensors", sha256="a" * 64, bytes=2037992)],
    source="/x",
    architecture="Détecteur",
    context_length=1024,
    tier="fast",
    pool="demo",
    sampling_defaults=pb.SamplingDefaults(temperature=0.7, top_p=0.95, max_tokens=256),
    eos_token_ids=[1, 5],
    training_data_sha256="b" * 64,
)


def changed(**fields: object) -> pb.ModelVersion:
    version = pb.ModelVersion()
    version.CopyFrom(OLDER)
    version.MergeFrom(pb.ModelVersion(**fields))
    return version


def test_who_vouches_is_no_content() -> None:
    moved = changed(digest="f" * 64, signature="{}")
    moved.created_at.GetCurrentTime()
    assert manifest_bytes(moved) == manifest_bytes(OLDER)


@pytest.mark.parametrize(
    "fields",
    [
        {"version": "2"},
        {"source": "blobs:"},
        {"namespace": "research"},
        {"schema_sha256": "c" * 64},
        {"offline_metrics": {"loss": 0.333}},
        {"provenance": pb.Provenance(base="weir-fast@0")},
        {"safety_policies": ["strict@1"]},
        {"tokenizer_sha256": "c" * 64},
        {"artifacts": [pb.Artifact(path="config.json", sha256="c" * 64, bytes=1)]},
    ],
)
def test_everything_else_is(fields: dict[str, object]) -> None:
    assert manifest_digest(changed(**fields)) != manifest_digest(OLDER)


@given(st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False), max_size=6), st.randoms())
def test_the_bytes_do_not_depend_on_the_order_in_which_a_map_was_filled(metrics: dict[str, float], chance) -> None:
    names = list(metrics)
    chance.shuffle(names)
    one, other = changed(), changed()
    for name in metrics:
        one.offline_metrics[name] = metrics[name]
    for name in names:
        other.offline_metrics[name] = metrics[name]
    assert manifest_bytes(one) == manifest_bytes(other)
    assert manifest_bytes(pb.ModelVersion.FromString(one.SerializeToString())) == manifest_bytes(one)


def test_a_folder_is_described_as_engines_check_it() -> None:
    content = json.loads(folder_manifest(OLDER))
    assert (content["name"], content["version"]) == ("weir-fast", "1")
    assert content["files"] == [{"path": "model.safetensors", "sha256": "a" * 64, "bytes": 2037992}]


@pytest.mark.parametrize("path", ["a", "a/b.json", "a..b", ".hidden"])
def test_paths_inside(path: str) -> None:
    assert inside(path)


@pytest.mark.parametrize("path", ["", ".", "..", "../a", "a/../b", "/a", "a//b", "./a", "a/", "a\\b", "a\nb", "a\0"])
def test_paths_outside(path: str) -> None:
    assert not inside(path)
