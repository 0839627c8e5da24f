"""Decides version, arm, tier, pool and zones of a request."""
