"""Pure parts of the rate limiter: what the edge asks, whom it sheds, how limits are told, how a journal becomes state.

The decisions themselves are `libs.quota.Ledger`.
"""
