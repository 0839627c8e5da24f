"""A mesh under `docker compose`."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support import engine
from tests.support.mesh import eventually

CHAT = Path(__file__).with_name("chat.py")
PREDICT = Path(__file__).with_name("predict.py")


class Composed:
    """The mesh of docker-compose.yml. Calling it calls `docker compose`."""

    def __call__(self, *arguments: str, timeout: float = 2 * engine.MINUTES) -> str:
        return engine.run("docker", "compose", "--progress", "plain", *arguments, timeout=timeout)

    def up(self, *profiles: str) -> float:
        """Brings it up and waits until everything is healthy; the seconds that it took."""
        started = time.monotonic()
        flags = [flag for profile in profiles for flag in ("--profile", profile)]
        self(*flags, "up", "--detach", "--no-build", "--wait", "--wait-timeout", "170", timeout=3 * engine.MINUTES)
        return time.monotonic() - started

    def containers(self) -> dict[str, dict[str, Any]]:
        """What `docker inspect` says of every running container, by service."""
        ids = self("ps", "--quiet").split()
        found = json.loads(engine.run("docker", "inspect", *ids))
        return {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in found}

    def container(self, service: str) -> dict[str, Any]:
        """The same of one."""
        return self.containers()[service]

    @property
    def keys(self) -> dict[str, str]:
        """The demo keys, as `docker compose logs init` prints them, by variable."""
        return dict(re.findall(r"(WEIR_\w*KEY\w*)=(\S+)", self("logs", "--no-log-prefix", "init")))

    @cached_property
    def ca(self) -> str:
        """Path of the certificate that the edge's own is checked against."""
        path = engine.ROOT / "build" / "compose-ca.crt"
        path.write_text(self("exec", "-T", "envoy", "cat", "/etc/weir/edge/ca.crt"))
        return str(path)

    def chat(self, *, seconds: float = 60.0) -> Mapping[str, Any]:
        """Streams a completion from the published port with the `openai` package, asking again for so long where the
        mesh has nobody to answer; see chat.py."""
        key = self.keys["WEIR_KEY_ACME"]
        said = engine.run(sys.executable, CHAT, "https://localhost:18001/v1", self.ca, key, str(seconds))
        return json.loads(said.splitlines()[-1])

    def predict(self, model: str, inputs: Any, *, degradable: bool = False, seconds: float = 60.0) -> Mapping[str, Any]:
        """Asks for a prediction at the published port with `tritonclient`, again for so long where the mesh has nobody
        to answer; see predict.py."""
        asked = (model, json.dumps(inputs), "yes" if degradable else "no", str(seconds))
        key = self.keys["WEIR_KEY_ACME"]
        said = engine.run(sys.executable, "-P", PREDICT, "localhost:18001", self.ca, key, *asked)
        return json.loads(said.splitlines()[-1])

    def inside(self, service: str, code: str) -> Any:
        """What a piece of Python prints as JSON in a container, in its process's place: its user, files and rights."""
        return json.loads(self("exec", "-T", service, "python3", "-S", "-E", "-c", code))

    def kill(self, service: str) -> None:
        """Kills the process of a container as a crash would; returns when the container runs and is healthy again."""
        before = self.container(service)
        engine.run("kill", "-KILL", str(before["State"]["Pid"]))
        eventually(lambda: self._restarted(service, before), seconds=60, what=f"{service}, back and healthy")

    def _restarted(self, service: str, before: Mapping[str, Any]) -> bool:
        after = self.containers().get(service, before)
        health = after["State"].get("Health", {}).get("Status")
        return after["RestartCount"] > before["RestartCount"] and health == "healthy"
