"""The decoder architectures that the torch engine runs, and what a checkpoint's config.json says of itself as one.

Imports no torch, so that a command can judge a folder where there is none: `FAMILIES` is what is known, `parse_config`
the one judgement.
"""

from libs.families.config import Activation, ModelConfig, parse_config
from libs.families.family import FAMILIES, Family, Norms
from libs.families.rope import ROPE_KINDS, RopeConfig

__all__ = ["FAMILIES", "ROPE_KINDS", "Activation", "Family", "ModelConfig", "Norms", "RopeConfig", "parse_config"]
