"""Admission's decisions: pure, single-threaded, told the time. See ../README.md for the picture."""
