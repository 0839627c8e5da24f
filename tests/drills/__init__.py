"""A package, so that its mesh ends when its tests do, and not with all tests."""
