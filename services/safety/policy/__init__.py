"""Which pack binds a request: pure."""
