"""The mesh beside other gateways under the same load: `make bench-peers`."""
