"""Settings of the door: the common ones, of which `etcd` is the etcd behind it and `tls` must be there."""

from libs.config import ServiceSettings


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the module's docstring."""
