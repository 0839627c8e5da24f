"""Planted bottlenecks, for the bench of the diagnosis and its tests."""
