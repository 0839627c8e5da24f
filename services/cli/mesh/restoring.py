"""The mesh on this machine, down, as the place that a backup is put into: with as many members of etcd as it had when
it was last up."""

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
    """The etcd, the audit log and the store of records of the mesh that WEIR_STATE_DIR names."""

    def __init__(self) -> None:
        """:raises SystemExit: what names it makes no sense."""
        try:
            where = site.locate()
            last = site.read_json(where.state / "last_up.json")
            options = Options(profile=last.get("profile", "demo"), overrides=tuple(last.get("overrides", ())))
            units = [unit for unit in make_plan(where, options).units if unit.process.kind == "etcd"]
        except TopologyError as error:
            raise failed(str(error)) from error
        self._members = [_flags(unit.argv) for unit in units]
        self._state, self._tool = where.state, Path(where.etcd).with_name("etcdutl")
        self.audit = where.data("audit")
        """The audit service's folder."""
        self.records = where.data("records")
        """The folder of the store of records."""

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
        """Makes the data of etcd's members out of a snapshot.

        :raises SnapshotError: etcdutl refuses, or there are data.
        """
        folders = [Path(flags["data-dir"]) for flags in self._members]
        for data in folders:
            if data.exists() and any(data.iterdir()):
                raise SnapshotError(f"{data} is not empty: move it away before a snapshot is put there")
        peers = {flags["name"]: flags["initial-advertise-peer-urls"] for flags in self._members}
        etcd.restore_all(self._tool, snapshot, dict(zip(peers, folders, strict=True)), peers)


def _flags(argv: tuple[str, ...]) -> dict[str, str]:
    return dict(each.lstrip("-").split("=", 1) for each in argv[1:] if "=" in each)
