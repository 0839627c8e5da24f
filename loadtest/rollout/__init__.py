"""Rollouts measured on a real mesh: how soon a bad version is found out and off, and whom it hurt."""
