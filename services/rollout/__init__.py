"""Watches rollouts and decides about them."""
