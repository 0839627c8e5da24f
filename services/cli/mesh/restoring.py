"""The mesh on this machine, down, as the place that a backup is put into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from libs.backup import SnapshotError, etcd
from services.cli.mesh import lifecycle, site
from services.cli.mesh.topology import TopologyError
from services.cli.mesh.up import Options, make_plan
from services.cli.output import failed


class Here:
    """Its etcd and its audit log; one of each."""

    def __init__(self) -> None:
        """:raises TopologyError: what names it makes no sense."""
        where = site.locate()
        spec = next(each for each in make_plan(where, Options(profile="demo")).processes if each.name == "etcd")
        self._flags = dict(each.lstrip("-").split("=", 1) for each in spec.argv[1:] if "=" in each)
        self._state, self._tool = where.state, Path(where.etcd).with_name("etcdutl")
        self.audit = where.data("audit")
        """The audit service's folder."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody starts the mesh meanwhile.

        :raises SystemExit: it runs.
        """
        self._state.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            lock = lifecycle.Lock(self._state)
        except lifecycle.Busy as error:
            raise failed(f"{error}; `weir down` first") from error
        try:
            yield
        finally:
            lock.close()

    def restore_etcd(self, snapshot: Path) -> None:
        """Makes etcd's data out of a snapshot.

        :raises SnapshotError: etcdutl refuses, or there are data.
        """
        data = Path(self._flags["data-dir"])
        if data.exists() and any(data.iterdir()):
            raise SnapshotError(f"{data} is not empty: move it away before a snapshot is put there")
        peer = self._flags["initial-advertise-peer-urls"]
        etcd.restore(self._tool, snapshot, data, name=self._flags["name"], peer_url=peer)


def here() -> Here:
    """The mesh that WEIR_STATE_DIR names.

    :raises SystemExit: it cannot be.
    """
    try:
        return Here()
    except TopologyError as error:
        raise failed(str(error)) from error
