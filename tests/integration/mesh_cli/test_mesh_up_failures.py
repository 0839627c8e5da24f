"""`weir up` that cannot succeed says why and leaves nothing behind. Small meshes of fake services, real processes."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.supervisor.reading import last_lines
from services.cli.mesh import lifecycle, preflight, up
from services.cli.mesh.lifecycle import StartError
from services.cli.mesh.site import ROOT, locate
from services.cli.mesh.sites import Laptop
from services.cli.mesh.topology import TopologyError

TOPOLOGY = """
[ports]
edge_http = 0
edge_https = 1
envoy_status = 2
edge_admin = 3
etcd = 10
etcd_peer = 11
etcd_metrics = 12
[process.etcd]
kind = "etcd"
service = "etcd"
[process.door]
service = "door"
port = 13
after = ["etcd"]
[process.controlplane]
service = "controlplane"
port = 20
after = ["etcd"]
[process.registry]
service = "registry"
port = 21
after = ["etcd"]
[process.collector]
service = "collector"
port = 22
after = ["etcd"]
[process.envoy]
kind = "envoy"
service = "envoy"
"""
DYING = """
import sys
print("reading the configuration", flush=True)
print("no such pepper", file=sys.stderr, flush=True)
sys.exit(3)
"""
TELLING = """
import os, sys
print(*(f"{name}={value}" for name, value in os.environ.items() if name.startswith("WEIR_")), flush=True)
sys.exit(3)
"""
IDLE = "import signal; signal.pause()"


def free_base() -> int:
    """A port base whose ports are free as far as one can know; below the range from which the kernel takes ports for
    outgoing connections, and seldom the same in two test runs at once."""
    for attempt in range(200):
        base = 10_000 + (os.getpid() + attempt) % 200 * 50
        if not preflight.check_ports({base + offset: "" for offset in range(50)}):
            return base
    raise RuntimeError("no free ports")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Laptop]:
    """A checkout whose services are fakes: all idle but what a test replaces."""
    root = tmp_path / "checkout"
    (root / "deploy" / "profiles").mkdir(parents=True)
    (root / "deploy" / "topology.toml").write_text(TOPOLOGY)
    (root / "deploy" / "profiles" / "demo.toml").write_text("")
    (root / "deploy" / "seed").mkdir()
    (root / "deploy" / "seed" / "more.toml").write_text("models = []\n[policies]\n[keys]\n")
    shutil.copytree(ROOT / "envoy", root / "envoy")
    (root / "services").mkdir()
    (root / "services" / "__init__.py").write_text("")
    for name in ("controlplane", "door", "registry", "collector"):
        (root / "services" / f"{name}.py").write_text(IDLE)
    real = locate({})
    made = Laptop(
        root=root,
        state=tmp_path / "state",
        port_base=free_base(),
        interpreter=sys.executable,
        etcd=real.etcd,
        envoy=real.envoy,
    )
    yield made
    lifecycle.stop(made.state)


def run(site: Laptop, profile: str = "demo", *overrides: str) -> list[str]:
    """`weir up`; returns the lines that it said."""
    said: list[str] = []
    up.up(site, up.Options(profile=profile, overrides=overrides), say=said.append, write=said.append)
    return said


def nothing_runs(site: Laptop) -> bool:
    """Whether no process mentions the state directory or holds its lock."""
    lifecycle.Lock(site.state).close()
    needle = str(site.state).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if needle in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
    return not found


def test_a_service_that_dies_at_start_is_named_with_its_last_lines(site: Laptop) -> None:
    (site.root / "services" / "collector.py").write_text(DYING)
    with pytest.raises(StartError, match="collector exited with code 3") as caught:
        run(site)
    assert caught.value.details == ["reading the configuration", "no such pepper"]
    assert nothing_runs(site)
    assert last_lines(site.state / "logs" / "collector.log", 1) == ["no such pepper"]


def test_a_service_does_not_take_the_meshs_own_variables_for_its_settings(
    site: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WEIR_STATE_DIR": "/elsewhere", "WEIR_BLOBS": "file:///b", "WEIR_LOG_LEVEL": "debug"}.items():
        monkeypatch.setenv(name, value)
    (site.root / "services" / "collector.py").write_text(TELLING)
    with pytest.raises(StartError, match="collector exited with code 3") as caught:
        run(site)
    assert caught.value.details == ["WEIR_LOG_LEVEL=debug"]


def test_a_taken_port_is_named_with_who_wants_it_and_who_has_it(site: Laptop) -> None:
    with (
        socket.create_server(("127.0.0.1", site.port_base + 22)),
        pytest.raises(preflight.PreflightError) as caught,
    ):
        run(site)
    message = str(caught.value)
    assert f"port {site.port_base + 22}, which collector needs, is taken" in message
    assert f"(pid {os.getpid()})" in message
    assert nothing_runs(site)


def test_a_missing_program_is_named_before_anything_starts(site: Laptop) -> None:
    broken = Laptop(
        root=site.root,
        state=site.state,
        port_base=site.port_base,
        interpreter=site.interpreter,
        etcd="/nonexistent/etcd",
        envoy=site.envoy,
    )
    with pytest.raises(preflight.PreflightError, match="the program etcd is not at /nonexistent/etcd"):
        run(broken)
    assert nothing_runs(site)


def test_an_unknown_profile_or_service_is_refused(site: Laptop) -> None:
    with pytest.raises(TopologyError, match="no profile 'nothing'; there are: demo"):
        run(site, "nothing")
    with pytest.raises(TopologyError, match="no service or process is called wroker"):
        run(site, "demo", "wroker.threads=1")
    assert not (site.state / "supervisor.lock").exists()


def test_a_supervisor_that_cannot_start_shows_its_error(site: Laptop) -> None:
    text = (site.root / "deploy" / "topology.toml").read_text()
    circular = text.replace('after = ["etcd"]', 'after = ["etcd", "collector"]')
    (site.root / "deploy" / "topology.toml").write_text(circular)
    with pytest.raises(StartError, match="the supervisor did not start") as caught:
        run(site)
    assert "in a circle: collector" in "\n".join(caught.value.details)
    assert nothing_runs(site)


def starting(site: Laptop) -> subprocess.Popen[bytes]:
    """`weir up` as a process of its own; its services never get ready."""
    code = (
        "import sys; from pathlib import Path\n"
        "from services.cli.mesh import up; from services.cli.mesh.sites import Laptop\n"
        f"site = Laptop(root=Path({str(site.root)!r}), state=Path({str(site.state)!r}), port_base={site.port_base}, "
        f"interpreter={site.interpreter!r}, etcd={site.etcd!r}, envoy={site.envoy!r})\n"
        "say = lambda line: print(line, flush=True)\n"
        "try:\n    up.up(site, up.Options(profile='demo'), say=say, write=say)\n"
        "except KeyboardInterrupt:\n    sys.exit(130)\n"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)


def test_an_interrupt_while_services_start_stops_everything(site: Laptop) -> None:
    with starting(site) as process:
        if process.stdout is None:
            raise RuntimeError("no output")
        for line in process.stdout:
            if b"ready etcd" in line:
                process.send_signal(signal.SIGTERM)
                break
        process.stdout.read()
        assert process.wait(60) == 130
    assert nothing_runs(site)


def test_an_interrupt_before_the_supervisor_listens_stops_it_too(site: Laptop) -> None:
    with starting(site) as process:
        while not (site.state / "config" / "supervisor.json").exists():
            assert process.poll() is None
            os.sched_yield()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    assert nothing_runs(site)


def test_a_second_up_is_told_that_the_first_one_prepares(site: Laptop) -> None:
    site.state.mkdir()
    lock = lifecycle.Lock(site.state)
    try:
        with pytest.raises(lifecycle.Busy, match="another `weir up`"):
            run(site)
    finally:
        lock.close()


def test_a_leftover_socket_of_a_killed_supervisor_is_no_obstacle(site: Laptop) -> None:
    site.state.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.getcwd()
        os.chdir(site.state)
        listener.bind("supervisor.sock")
        os.chdir(before)
    assert lifecycle.status(site.state) is None
    (site.root / "services" / "registry.py").write_text(DYING)
    with pytest.raises(StartError, match="registry exited with code 3"):
        run(site)
    assert nothing_runs(site)
