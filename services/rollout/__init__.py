"""Watches what rollouts do to callers, and decides: go on, hold, roll back. See README.md."""
