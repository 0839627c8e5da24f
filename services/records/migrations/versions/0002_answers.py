"""What idempotency keys stand for."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "answers",
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("holder", sa.String, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("since", "ends", "held", "size")),
        sa.Column("answer", sa.LargeBinary, nullable=True),
        sa.PrimaryKeyConstraint("tenant", "key"),
    )
    op.create_index("answers_tenant", "answers", ["tenant", "since"])
    op.create_index("answers_since", "answers", ["since"])
    op.create_index("answers_ends", "answers", ["ends"])
    op.create_index("answers_holder", "answers", ["holder"])
