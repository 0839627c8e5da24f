"""`weir` for tests: the command in this process, or as one of its own, for the mesh of a state directory."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from libs.authority.identity import Operator as Person
from libs.config import TlsFiles
from libs.pki import issue
from libs.registry import MemoryStore
from libs.service.process import serve
from services.cli.__main__ import call
from services.registry.app import build
from services.registry.config import Settings

NAME = "tester"
"""Who runs the commands."""
ROOT = Path(__file__).resolve().parents[2]


class Answer:
    """What a command did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


class Operator:
    """Runs `weir` for a state directory."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.services: dict[str, dict[str, str]] = {}

    def tls(self, name: str | Person) -> TlsFiles:
        """A workload's or a person's certificate."""
        files = issue(self.state / "pki", name)
        return TlsFiles(files.ca, files.cert, files.key)

    def describe(self, tls: TlsFiles | None = None, edge_url: str = "http://127.0.0.1:9", **more: Any) -> None:
        """Writes mesh.json."""
        own = tls or self.tls(Person(NAME))
        described = {"ca": own.ca, "cert": own.cert, "key": own.key}
        file = {"services": self.services, "edge_url": edge_url, "operator": NAME, "tls": described, **more}
        (self.state / "mesh.json").write_text(json.dumps(file))

    async def __call__(self, *words: object, typed: str = "") -> Answer:
        """In this process, beside whatever serves in its loop. :param typed: standard input."""
        return await asyncio.to_thread(self._call, [str(word) for word in words], typed)

    def _call(self, words: list[str], typed: str) -> Answer:
        out, err, before = io.StringIO(), io.StringIO(), ({**os.environ}, sys.stdin)
        os.environ["WEIR_STATE_DIR"], sys.stdin = str(self.state), io.StringIO(typed)
        # A command that is called as somebody says so to its process, which is this one.
        os.environ.pop("WEIR_OPERATOR", None)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = call(words)
        finally:
            sys.stdin = before[1]
            for name in ("WEIR_STATE_DIR", "WEIR_OPERATOR"):
                os.environ.pop(name, None)
                os.environ |= {name: before[0][name]} if name in before[0] else {}
        return Answer(code, out.getvalue(), err.getvalue())

    async def start(self, *words: object, environ: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
        """As a process."""
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", *map(str, words)),
            cwd=ROOT,
            env={**os.environ, "WEIR_STATE_DIR": str(self.state), **(environ or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def process(self, *words: object, environ: Mapping[str, str] | None = None) -> Answer:
        """As a process, to its end."""
        process = await self.start(*words, environ=environ)
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return Answer(process.returncode or 0, out.decode(), err.decode())

    @contextlib.asynccontextmanager
    async def registry(self, store: MemoryStore, *, port: int = 0) -> AsyncIterator[int]:
        """A registry with mTLS that `weir` then finds; its port."""
        (self.state / "pepper").write_text("0123456789abcdef0123456789abcdef")
        config = Settings(
            service="registry",
            instance="registry-0",
            port=port,
            tls=self.tls("registry"),
            pepper_file=str(self.state / "pepper"),
            audit_target="",
            owners=(f"operator:{NAME}",),
            drain_seconds=0.1,
        )
        async with serve(
            await build(config, store=store), config, deadline_optional=("/weir.registry.v1.",)
        ) as running:
            await asyncio.wait_for(running.ready.wait(), 10)
            self.services["registry-0"] = {"service": "registry", "address": f"127.0.0.1:{running.port}"}
            self.describe()
            yield running.port
