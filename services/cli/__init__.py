"""The operator's command line, `weir`."""
