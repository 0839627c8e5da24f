"""Sealing at rest with keys that can be destroyed: envelope encryption for records that must be forgotten one day.

`keks` is the port of key-encryption keys and its adapter over files, `kms` the one over AWS KMS; `vault` keeps wrapped
data keys; `keyring` seals and opens with them. See docs/adr/0034-audit-that-forgets.md.
"""
