"""Who is in a service: how many may be, when the next may come, and how it empties."""

from libs.occupancy.occupancy import Occupancy, Visit
from libs.occupancy.turnover import LATEST, SOONEST, Turnover, jittered

__all__ = ["LATEST", "SOONEST", "Occupancy", "Turnover", "Visit", "jittered"]
