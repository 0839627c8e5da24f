"""Which safety policies hold for a request, and what they come to together.

Pure. `pins` adds up what the mesh, the tenant and the model version ask for; `composition` makes one pack of them, in
which the strictest action wins. The gateway pins, the safety service composes, `weir safety` explains with both.
"""

from libs.safety_policies.composition import compose, rules_of, united
from libs.safety_policies.pins import Origin, Pinned, floor_of, pinned, pins_of

__all__ = ["Origin", "Pinned", "compose", "floor_of", "pinned", "pins_of", "rules_of", "united"]
