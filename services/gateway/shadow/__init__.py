"""Mirrored requests: answered a second time by a rollout's candidate, where no user sees it, and compared."""
