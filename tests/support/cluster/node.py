"""Pods as containers of a Docker engine: a sandbox that holds the network namespace and its rules, and the container in
it, which starts when the rules are there."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.support.cluster import objects, rules
from tests.support.cluster.objects import Pod, UnknownFieldError

NETWORK = "weir-pods"
SUBNET, GATEWAY = "10.99.0.0/16", "10.99.0.1"
SERVICES = "10.98.0.0/16"


class CommandError(RuntimeError):
    """A command failed; the message says which and what it wrote."""


def run(*argv: str, text: str = "", timeout: float = 60) -> str:
    """A command's output.

    :raises CommandError: it failed.
    """
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise CommandError(f"{' '.join(argv)[:300]}: {done.stderr[-800:]}")
    return done.stdout.strip()


@dataclass(frozen=True)
class End:
    """How a container ended after SIGTERM."""

    code: int
    seconds: float


class Node:
    """The one node."""

    def __init__(self, image: str) -> None:
        """:param image: what sandboxes are made of; it has `sleep`."""
        self._image = image
        bridge = ("--opt", f"com.docker.network.bridge.name={NETWORK}")
        run("docker", "network", "create", "--subnet", SUBNET, "--gateway", GATEWAY, *bridge, NETWORK)
        # So that there is a way to services' addresses at all; it goes with the bridge.
        run("ip", "route", "add", SERVICES, "dev", NETWORK)
        self._sandboxes: dict[str, str] = {}
        self.apply_here(rules.HERE)

    def close(self) -> None:
        """Removes the network; pods must be gone."""
        self.apply_here(rules.GONE)
        run("docker", "network", "rm", NETWORK)

    def sandbox(self, pod: Pod, names: Mapping[str, str]) -> None:
        """Makes a pod's network namespace."""
        hosts = [f"--add-host={name}:{address}" for name, address in names.items()]
        # Names that no hosts file has end at once: there is no server for them.
        where = ["--network", NETWORK, "--ip", pod.address, "--hostname", pod.name, "--dns", "127.0.0.1"]
        box = f"{pod.name}.sandbox"
        entry = ["--entrypoint", "sleep", self._image, "infinity"]
        run(
            "docker",
            "run",
            "--detach",
            "--no-healthcheck",
            "--init",
            "--user",
            "65534",
            "--name",
            box,
            *where,
            *hosts,
            *entry,
        )
        self._sandboxes[pod.name] = run("docker", "inspect", "--format", "{{.State.Pid}}", box)
        self.apply(pod.name, rules.FIRST)

    def apply(self, name: str, text: str) -> None:
        """Rules for a pod."""
        run("nsenter", "-t", self._sandboxes[name], "-n", "iptables-restore", "--noflush", text=text)

    def apply_here(self, text: str) -> None:
        """Rules for the node itself."""
        run("iptables-restore", "--noflush", text=text)

    def denied(self, name: str) -> int:
        """Packets that a pod sent or should have received and that no policy allows."""
        listed = run("nsenter", "-t", self._sandboxes[name], "-n", "iptables", "-nvxL", rules.DENIED)
        return int(listed.splitlines()[2].split()[0])

    def start(self, pod: Pod, mounts: Sequence[str]) -> None:
        """Starts the container of a pod that has its sandbox."""
        container, entry = pod.container, objects.command(pod)
        argv = ["docker", "run", "--detach", "--no-healthcheck", "--name", pod.name]
        argv += ["--network", f"container:{pod.name}.sandbox"]
        argv += ["--restart", "no" if pod.workload["kind"] == "Job" else "unless-stopped"]
        argv += _security({**pod.spec["securityContext"], **container["securityContext"]})
        if limit := container.get("resources", {}).get("limits", {}).get("memory"):
            argv.append("--memory=" + limit.replace("Mi", "m").replace("Gi", "g"))
        for name, value in objects.environment(pod).items():
            argv += ["--env", f"{name}={value}"]
        argv += mounts
        if entry[0]:
            argv += ["--entrypoint", entry[0][0]]
        run(*argv, container["image"], *entry[0][1:], *entry[1])

    def restart(self, pod: Pod) -> None:
        """Starts a container again that has ended."""
        run("docker", "start", pod.name)

    def execute(self, pod: Pod, *argv: str, timeout: float = 60) -> str:
        """Runs something in a pod. Raises CommandError."""
        return run("docker", "exec", pod.name, *argv, timeout=timeout)

    def ready(self, pod: Pod) -> bool:
        """Whether a pod passes its readiness probe once."""
        probe = pod.container["readinessProbe"]["httpGet"]
        url = f"http://{pod.address}:{pod.port(probe['port'])}{probe['path']}"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return 200 <= answer.status < 400
        except (OSError, urllib.error.URLError):
            return False

    def state(self, pod: Pod) -> tuple[str, int, int]:
        """What docker says of a container: status, exit code, restarts."""
        state = json.loads(run("docker", "inspect", pod.name))[0]
        return state["State"]["Status"], state["State"]["ExitCode"], state["RestartCount"]

    def logs(self, pod: Pod, lines: int = 20) -> str:
        """The end of what a pod wrote."""
        argv = ("docker", "logs", "--tail", str(lines), pod.name)
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def end(self, pod: Pod) -> End:
        """Ends a pod as kubelet does: preStop, SIGTERM, and SIGKILL when its grace is over."""
        grace = int(pod.spec.get("terminationGracePeriodSeconds", 30))
        began = time.monotonic()
        hook = pod.container.get("lifecycle", {}).get("preStop", {})
        if "exec" in hook:
            self.execute(pod, *hook["exec"]["command"], timeout=grace)
        elif "sleep" in hook:
            time.sleep(hook["sleep"]["seconds"])
        elif hook:
            raise UnknownFieldError(f"preStop {', '.join(hook)}")
        left = max(1, int(grace - (time.monotonic() - began)))
        run("docker", "stop", "--time", str(left), pod.name, timeout=grace + 30)
        code = self.state(pod)[1]
        self.remove(pod)
        return End(code, time.monotonic() - began)

    def remove(self, pod: Pod) -> None:
        """Removes what is left of a pod at once."""
        argv = ("docker", "rm", "--force", "--volumes", pod.name, f"{pod.name}.sandbox")
        subprocess.run(argv, capture_output=True, check=False)
        self._sandboxes.pop(pod.name, None)


def _security(context: Mapping[str, object]) -> list[str]:
    """What a security context asks for, as arguments of `docker run`; the engine's seccomp profile is its default."""
    argv = ["--user", f"{context['runAsUser']}:{context['runAsGroup']}"]
    if "fsGroup" in context:
        argv += ["--group-add", str(context["fsGroup"])]
    if context.get("readOnlyRootFilesystem"):
        argv.append("--read-only")
    if not context.get("allowPrivilegeEscalation", True):
        argv.append("--security-opt=no-new-privileges:true")
    capabilities = context.get("capabilities", {})
    argv += [f"--cap-drop={each}" for each in capabilities.get("drop", [])]  # type: ignore[attr-defined]
    if unknown := set(capabilities) - {"drop"}:  # type: ignore[call-overload]
        raise UnknownFieldError(f"capabilities: {', '.join(unknown)}")
    return argv
