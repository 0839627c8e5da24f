"""What a service of the data plane knows of tenants and model versions: one snapshot of the registry, with the
tokenizers it names."""

from libs.catalog.catalog import UNKNOWN_MODEL, Catalog, ModelLimits
from libs.catalog.plans import Plan

__all__ = ["UNKNOWN_MODEL", "Catalog", "ModelLimits", "Plan"]
