"""Settings of the registry service."""

from libs.config import ServiceSettings


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the registry needs beside the common settings."""

    pepper_file: str
    """The file with the mesh's pepper, under which API keys are hashed; edge-auth reads the same one."""
    owners: tuple[str, ...] = ()
    """Principals that are owners while the registry knows no owner: whoever starts a fresh mesh."""
    audit_target: str = "xds:///audit.weir.internal"
    """Where the audit service is; empty keeps audit records in their outbox (tests only)."""
    audit_timeout: float = 5.0
    """Seconds to wait for the audit service's acknowledgement of one record."""
    audit_sweep: float = 30.0
    """Seconds between two looks for records that another replica left behind."""
    max_audit_backlog: int = 10_000
    """Changes are refused while more audit records than this wait for the audit service."""
    history_limit: int = 10_000
    """Entries of the history of changes that are kept; older ones are deleted, and with them the way back to them."""
    history_interval: float = 300.0
    """Seconds between two looks for entries that are too many."""
