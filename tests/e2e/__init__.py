"""A package, so that its meshes end when its tests do, and not with all tests."""
