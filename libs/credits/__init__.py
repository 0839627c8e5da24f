"""Grants that a gateway holds for requests to come, as they come and go; pure: time is told.

`Purse` is the gateway's end, and the simulation's; what admission gives away is `services/admission/policy/credits.py`.
"""

from libs.credits.purse import Ask, Credit, Purse

__all__ = ["Ask", "Credit", "Purse"]
