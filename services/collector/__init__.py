"""The development trace collector; see README.md."""
