"""Having ready, in one process, the model versions that the registry wants of it: `desired.py`, which carries out what
`plan.py` decides.

Import what you need from its modules: whoever only reads a manifest, or tells why a version cannot be loaded, needs
neither gRPC nor a registry.
"""
