"""What must work from an installed wheel alone: `bin/check-wheel` runs it with the folder of the wheel and its venv."""

import collections
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

OUT = Path(sys.argv[1])
WEIR = OUT / "venv" / "bin" / "weir"
MAX_MB = 12.0
"""Most of it are the demo models."""


def content() -> float:
    """Nothing is in the wheel twice; its size in MB."""
    wheel = next(OUT.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        twice = [name for name, count in collections.Counter(archive.namelist()).items() if count > 1]
    if twice:
        sys.exit(f"in the wheel twice: {twice}")
    size = wheel.stat().st_size / 1e6
    if size > MAX_MB:
        sys.exit(f"the wheel has {size:.1f} MB, more than {MAX_MB}")
    return size


def imports() -> None:
    """Generated code, packs, the client and the simulation."""
    import inference.open_inference_pb2_grpc  # noqa: F401
    import weir.client
    from weir.mux.v1 import mux_pb2  # noqa: F401
    from weir.registry.v1 import registry_pb2

    import simulation.__main__ as simulation
    from libs import shipped
    from services.cli.commands.schema import comment
    from services.safety import packs

    assert Path(weir.client.__file__).is_relative_to(OUT), weir.client.__file__
    assert shipped.INSTALLED, shipped.ROOT
    assert simulation.presets(), "no scenarios"
    with contextlib.redirect_stdout(io.StringIO()):
        assert simulation.main(["--workers", "1", "--seconds", "1", "--json"]) == 0
    assert comment(registry_pb2.Tenant), "no comments"
    assert (Path(packs.__file__).parent / "packs" / "default.json").exists()


def weir(*words: str) -> str:
    """What the console script prints."""
    return subprocess.run([WEIR, *words], check=True, capture_output=True, text=True, timeout=60).stdout


def commands() -> None:
    """It finds topology, profiles, the seed and its models."""
    assert "render" in weir("--help")
    told = json.loads(weir("render", "--profile", "simulated"))
    assert len(told["processes"]) > 10
    assert not [text for text in map(json.dumps, told["processes"].values()) if str(OUT) in text]
    from libs import shipped
    from services.cli.mesh import preflight, seed, site, up

    where = site.locate({})
    assert where.state == OUT / ".local" / "state" / "weir", where.state
    assert not preflight.check_programs({"etcd": where.etcd, "envoy": where.envoy})
    assert seed.resources(shipped.ROOT)
    assert not up.missing_models(where)


def service() -> None:
    """One service starts from what `weir init files` writes, is ready, and stops."""
    mesh, own = OUT / "mesh", OUT / "mesh" / "collector"
    weir("init", "files", f"--out={mesh}", f"--state={OUT / 'state'}", "--profile=simulated")
    files = {"ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"}
    flags = {f"tls.{part}": own / "tls" / name for part, name in files.items()}
    flags |= {"directory": OUT / "traces", "state_dir": OUT / "data"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [f"--{name}={value}" for name, value in flags.items()]
    command = [sys.executable, "-m", "services.collector", "--config", own / "config.json", *words]
    environ = {**os.environ, "WEIR_ADVERTISE": "127.0.0.1", "WEIR_HOST": "127.0.0.1", "WEIR_PORT": "0"}
    environ |= {"WEIR_METRICS_HOST": "127.0.0.1", "WEIR_METRICS_PORT": str(port)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if '"serving"' in line:
                break
        else:
            sys.exit("the collector does not start:\n" + "".join(lines))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            assert answer.read() == b"ok\n"
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(30) == 0, process.returncode


SIZE = content()
imports()
commands()
service()
print(f"the wheel ({SIZE:.1f} MB) holds what it needs: code, data, commands and a service that starts")  # noqa: T201
