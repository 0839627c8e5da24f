"""Decides when a request runs and on which worker."""
