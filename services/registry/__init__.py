"""The registry service: validated, audited changes to what the mesh serves and to whom."""
