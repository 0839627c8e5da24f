"""Which traces are kept. Pure."""
