"""A release, as its maker made it and as whoever takes it verifies it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.support.mesh import ROOT

PASSWORD = "not a secret"
SECONDS = 100


class Release:
    """A folder, and the key that signed it."""

    def __init__(self, cosign: str, folder: Path, key: Path) -> None:
        self.cosign, self.folder, self.key = cosign, folder, key

    def copy(self, folder: Path) -> Release:
        """For somebody to change."""
        shutil.copytree(self.folder, folder)
        return Release(self.cosign, folder, self.key)

    def sign(self, name: str, *more: str, key: Path | None = None) -> None:
        """As the release's maker does."""
        words = ["sign-blob", "--output-signature", f"{name}.sig"] if not more else ["attest-blob", *more]
        command = [self.cosign, *words, "--yes", "--key", str(key or self.key), "--tlog-upload=false", name]
        environ = {**os.environ, "COSIGN_PASSWORD": PASSWORD}
        subprocess.run(command, cwd=self.folder, env=environ, check=True, capture_output=True, timeout=SECONDS)

    def sum(self) -> None:
        """SHA256SUMS of what is there, signed by nobody."""
        names = sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("SHA256SUMS"))
        lines = [f"{hashlib.sha256((self.folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
        (self.folder / "SHA256SUMS").write_text("".join(lines))

    def signed(self) -> Release:
        """With its sums as they are now, signed: what the sums alone vouch for."""
        self.sum()
        self.sign("SHA256SUMS")
        return self

    def verify(self, key: Path | None = None) -> subprocess.CompletedProcess[str]:
        """As whoever takes it does."""
        command = [ROOT / "bin" / "verify-release", self.folder, key or self.key.with_suffix(".pub")]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)

    def refused(self, why: str) -> None:
        done = self.verify()
        assert (done.returncode, why in done.stderr) == (1, True), f"{done.stdout}{done.stderr}"


def make_key(cosign: str, prefix: Path) -> Path:
    """A key pair; the private half's path."""
    command = [cosign, "generate-key-pair", "--output-key-prefix", str(prefix)]
    environ = {**os.environ, "COSIGN_PASSWORD": PASSWORD}
    subprocess.run(command, env=environ, check=True, capture_output=True, timeout=SECONDS)
    return prefix.with_suffix(".key")


def make(cosign: str, folder: Path, *options: str, seconds: float = 2 * SECONDS) -> Release:
    """A release of the last commit, with a key of its own."""
    key = make_key(cosign, folder / "key")
    environ = {**os.environ, "WEIR_RELEASE_KEY": str(key), "COSIGN_PASSWORD": PASSWORD}
    command = [ROOT / "bin" / "release", *options, "--out", str(folder / "out")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr
    return Release(cosign, folder / "out", key)
