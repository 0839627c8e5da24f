"""The OpenAI HTTP API, as a gRPC facade that Envoy transcodes.

`requests`, `responses`, `usage` and `status` are pure: bytes ⇄ domain. `servicer` is the thin shell.
"""
