"""The control plane's pure core: registry endpoints in, plain-data xDS resources out. See ../README.md."""
