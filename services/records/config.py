"""Settings of the store of records."""

from pathlib import Path

from libs.config import ServiceSettings


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it needs beside the common settings."""

    audit: str = "xds:///audit.weir.internal"
    """Where the audit service is: an xDS name, or "host:port" in tests."""
    database: str = ""
    """A URL as SQLAlchemy has it: postgresql+psycopg://USER@HOST/NAME (beyond one machine, or for several processes),
    or sqlite:////PATH. Empty: an SQLite file in `state_dir`. A password belongs into PGPASSFILE, not here."""
    request_days: int = 400
    """How many days a request's row is kept. The audit log's own retention is its own; 0: for ever."""
    usage_days: int = 0
    """How many days sums are kept; 0: for ever. They are what bills are made of."""
    answer_bytes: int = 2**30
    """Of all answers that idempotency keys stand for; the oldest go first."""
    look_seconds: float = 1.0
    """Between two looks for what is new: how far answers may be behind the log while nobody asks."""
    retry_seconds: float = 1.0
    """After the audit service or the database was away."""
    retention_seconds: float = 600.0
    """How often what is too old is looked for."""
    statement_seconds: float = 10.0
    """After which PostgreSQL gives a question up."""

    def __post_init__(self) -> None:
        """:raises ValueError: a number of days is negative."""
        super().__post_init__()
        if min(self.request_days, self.usage_days) < 0:
            raise ValueError("request_days, usage_days: 0 keeps for ever")

    @property
    def url(self) -> str:
        """The database's."""
        return self.database or f"sqlite:///{Path(self.state_dir or '.').absolute() / 'records.sqlite'}"
