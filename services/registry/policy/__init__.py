"""What the registry accepts: pure functions over values; no I/O, no protobuf, no clock."""
