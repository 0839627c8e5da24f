"""The OpenAI HTTP API, as a gRPC facade that Envoy transcodes.

`requests` and `responses` are pure: bytes ⇄ domain. `servicer` is the thin shell.
"""
