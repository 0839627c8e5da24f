"""What resources may say: pure functions from a message, and the registry as it would be with it, to every fault."""
