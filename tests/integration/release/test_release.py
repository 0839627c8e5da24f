"""A release without images, made with a key of its own: it verifies, and whatever was changed in it is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.mesh import ROOT
from tests.support.release import Release, make, make_key

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
WHEEL = f"weir-{VERSION}-py3-none-any.whl"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Release:
    found = subprocess.run([ROOT / "bin" / "cosign"], capture_output=True, text=True, timeout=100)
    if found.returncode == 77 and os.environ.get("WEIR_CI") != "1":
        pytest.skip(f"no cosign: {found.stderr.strip().splitlines()[-1]}")
    assert found.returncode == 0, found.stderr
    return make(found.stdout.strip(), tmp_path_factory.mktemp("release"), "--no-images")


def test_it_holds_what_it_says(made: Release) -> None:
    assert made.verify().returncode == 0
    with zipfile.ZipFile(made.folder / WHEEL) as wheel:
        metadata = wheel.read(f"weir-{VERSION}.dist-info/METADATA").decode()
    assert f"\nVersion: {VERSION}\n" in metadata
    bom = json.loads((made.folder / f"{WHEEL}.cdx.json").read_text())
    root, digest = bom["metadata"]["component"], hashlib.sha256((made.folder / WHEEL).read_bytes()).hexdigest()
    assert (root["name"], root["version"], root["hashes"][0]["content"]) == ("weir", VERSION, digest)
    known = {each["name"].lower() for each in bom["components"]}
    assert {"grpcio", "torch", "typing_extensions", "botocore"} <= known, "asked for, by itself or by another"
    assert not {"pytest", "ruff", "mypy", "moto"} & known, "tools of development"
    lock = json.loads((made.folder / "requirements.lock.cdx.json").read_text())
    assert {"grpcio", "pytest"} <= {each["name"] for each in lock["components"]}
    notes = (made.folder / "RELEASE_NOTES.md").read_text()
    assert "no images" in notes
    assert "`make up`" in notes, "the changelog's section"
    assert not [path for path in made.folder.iterdir() if b"PRIVATE" in path.read_bytes()]


def test_what_is_no_release_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("years of work")
    command = [ROOT / "bin" / "release", "--no-images", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "is no release: it would be deleted" in done.stderr) == (1, True)
    assert (tmp_path / "thesis").read_text() == "years of work"


def test_another_key_is_refused(made: Release, tmp_path: Path) -> None:
    other = make_key(made.cosign, tmp_path / "other")
    done = made.verify(other.with_suffix(".pub"))
    assert (done.returncode, "SHA256SUMS is not signed by this key" in done.stderr) == (1, True)


@pytest.mark.parametrize("name", [WHEEL, f"{WHEEL}.cdx.json", "requirements.lock", "RELEASE_NOTES.md"])
def test_a_changed_file_is_refused(made: Release, tmp_path: Path, name: str) -> None:
    changed = made.copy(tmp_path / "changed")
    content = bytearray((changed.folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (changed.folder / name).write_bytes(content)
    changed.refused("a file is not as SHA256SUMS says")
    changed.sum()
    changed.refused("SHA256SUMS is not signed by this key")


def test_a_file_more_or_less_is_refused(made: Release, tmp_path: Path) -> None:
    more = made.copy(tmp_path / "more")
    (more.folder / "readme.txt").write_text("install this")
    more.refused("not in SHA256SUMS: readme.txt")
    (more.folder / "readme.txt").rename(more.folder / "SHA256SUMS.txt")
    more.refused("not in SHA256SUMS: SHA256SUMS.txt")
    (more.folder / "SHA256SUMS.txt").unlink()
    (more.folder / "install").symlink_to("/bin/sh")
    more.refused("not in SHA256SUMS: install")
    less = made.copy(tmp_path / "less")
    (less.folder / f"{WHEEL}.att").unlink()
    less.refused("a file is not as SHA256SUMS says")


def test_what_the_sums_alone_vouch_for_is_refused(made: Release, tmp_path: Path) -> None:
    # Somebody got the sums of what they changed signed, without the artifacts and their SBOMs.
    other = make_key(made.cosign, tmp_path / "other")

    wheel = made.copy(tmp_path / "wheel")
    (wheel.folder / WHEEL).write_bytes((wheel.folder / WHEEL).read_bytes() + b"\0")
    wheel.signed().refused(f"{WHEEL} is not signed by this key")

    sbom = made.copy(tmp_path / "sbom")
    path = sbom.folder / f"{WHEEL}.cdx.json"
    bom = json.loads(path.read_text())
    bom["components"] = bom["components"][1:]
    path.write_text(json.dumps(bom))
    sbom.signed().refused(f"{WHEEL}.cdx.json is not the SBOM that was attested")

    # The attestation says the same, by another's word.
    attest = ("--type", "cyclonedx", "--predicate", path.name, "--output-signature", f"{WHEEL}.att")
    sbom.sign(WHEEL, *attest, key=other)
    sbom.signed().refused(f"{WHEEL}.att is no attestation of {WHEEL} by this key")

    # Of the right word, with other content in it.
    inside = made.copy(tmp_path / "inside")
    envelope = json.loads((inside.folder / f"{WHEEL}.att").read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"] = bom
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    (inside.folder / f"{WHEEL}.att").write_text(json.dumps(envelope))
    inside.signed().refused(f"{WHEEL}.att is no attestation of {WHEEL} by this key")

    # An attestation of another artifact.
    mixed = made.copy(tmp_path / "mixed")
    shutil.copyfile(mixed.folder / "requirements.lock.att", mixed.folder / f"{WHEEL}.att")
    mixed.signed().refused(f"{WHEEL}.att is no attestation of {WHEEL} by this key")


def test_an_artifact_may_be_as_large_as_an_engine(made: Release, tmp_path: Path) -> None:
    large = made.copy(tmp_path / "large")
    with (large.folder / "engine").open("wb") as file:
        file.truncate(2**27 + 1)
    shutil.copyfile(large.folder / f"{WHEEL}.cdx.json", large.folder / "engine.cdx.json")
    large.sign("engine")
    large.sign("engine", "--type", "cyclonedx", "--predicate", "engine.cdx.json", "--output-signature", "engine.att")
    done = large.signed().verify()
    assert done.returncode == 0, done.stderr
