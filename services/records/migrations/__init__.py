"""The schema's versions, for alembic: applied when the service starts."""
