"""Requests, usage, and how far the log is projected."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_KEY = ("hour", "tenant", "key", "user", "model", "version", "queue_class", "operation")
_COUNTS = (
    *("requests", "refused", "prompt", "cached", "completion", "microusd", "unknown", "at_most", "rows"),
    *("predictions", "at_most_rows"),
)


def upgrade() -> None:
    """Makes the tables."""
    op.create_table("position", sa.Column("one", sa.Integer, primary_key=True), *_numbers("sequence"), *_words("hash"),
                    *_numbers("base", "since"))  # fmt: skip
    position = sa.table("position", *map(sa.column, ("one", "sequence", "hash", "base", "since")))
    op.bulk_insert(position, [{"one": 1, "sequence": 0, "hash": "0" * 64, "base": 0, "since": 0}])
    op.create_table(
        "requests",
        sa.Column(
            "sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False
        ),
        *_words("id"),
        *_numbers("time"),
        *_words("tenant", "key", "user", "model", "version", "queue_class", "operation", "outcome"),
        *_numbers("prompt", "cached", "completion", "microusd", "rows", "at_most", "at_most_rows"),
    )
    # A page is in the order of one of these; what they do not tell is looked at row by row, so many at most.
    for name in ("tenant", "key", "user", "model", "version"):
        op.create_index(f"requests_{name}", "requests", [name, "time", "sequence"])
    op.create_index("requests_time", "requests", ["time", "sequence"])
    op.create_index("requests_id", "requests", ["id"])
    op.create_table(
        "usage",
        *(_column(name) for name in _KEY),
        *_numbers("segment", *_COUNTS),
        sa.PrimaryKeyConstraint(*_KEY, "segment"),
        sqlite_with_rowid=False,
    )
    op.create_index("usage_tenant", "usage", ["tenant", "hour"])
    op.create_index("usage_segment", "usage", ["segment"])
    op.create_table(
        "unsettled",
        sa.Column("id", sa.String, primary_key=True),
        *_numbers("sequence"),
        *(_column(name) for name in _KEY),
        *_numbers("tokens", "rows"),
    )
    op.create_table("leases", sa.Column("id", sa.String, primary_key=True), *_numbers("sequence", "rows"))
    op.create_index("leases_sequence", "leases", ["sequence"])
    op.create_table("users", sa.Column("name", sa.String, primary_key=True), *_numbers("sequence"))


def _column(name: str) -> sa.Column:  # type: ignore[type-arg]
    return sa.Column(name, sa.BigInteger if name == "hour" else sa.String, nullable=False)


def _numbers(*names: str) -> list[sa.Column]:  # type: ignore[type-arg]
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names]


def _words(*names: str) -> list[sa.Column]:  # type: ignore[type-arg]
    return [sa.Column(name, sa.String, nullable=False) for name in names]
