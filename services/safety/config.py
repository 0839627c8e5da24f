"""Settings of the safety service."""

from libs.config import ServiceSettings


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the safety service needs beside the common settings."""

    packs_dir: str = ""
    """A directory of shipped packs, `<policy>.json`, each the policy `<policy>@0`; empty takes those in this folder."""
    default_policy: str = "default"
    """The shipped policy that is the floor as long as the registry names none."""
    max_packs: int = 64
    """Compiled packs kept: one for each set of policies that requests have in common."""
    policy_patience: float = 0.5
    """Seconds that an input waits for a policy of which nothing is known here; less than the gateway waits for its
    answer."""
    max_filters: int = 16_384
    """Most output filters open on one session."""
    max_context: int = 4_096
    """Most characters of `OpenFilter.context` that are looked at, from its end; longer than any match (256)."""
    max_input_chars: int = 262_144
    """Most characters of one input's texts together; a longer one is refused before anything of it is looked at."""
    max_waiting_chars: int = 1_048_576
    """Most characters of one tenant's inputs that wait for their check."""
    max_delta_chars: int = 16_384
    """Most characters of one piece of output."""
    max_in_flight: int = 4_096
    """Calls in flight per session."""
