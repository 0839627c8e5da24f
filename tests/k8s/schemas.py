"""Checks rendered manifests against the schemas of their kinds: `python schemas.py FILE ...`. A line per fault, and
exit code 1.

Kubernetes's own kinds by kubernetes-validate, strictly; those of cert-manager, KEDA and Prometheus's operator by models
made of their CRDs, and every field must be one of the model's. Runs in the environment of bin/k8s-env.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

KUBERNETES = "1.34"
"""Oldest release that these manifests are checked for; all fields that they use are stable there."""
MODELS = {
    "cert-manager.io": "cloudcoil.models.cert_manager",
    "keda.sh": "cloudcoil.models.keda",
    "monitoring.coreos.com": "cloudcoil.models.prometheus_operator",
}


def faults(document: dict[str, Any]) -> Iterator[str]:
    """What is wrong with one document."""
    group, _, version = document["apiVersion"].rpartition("/")
    try:
        if group not in MODELS:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
            return
        kind = getattr(importlib.import_module(f"{MODELS[group]}.{version}"), document["kind"])
        read = kind.model_validate(document).model_dump(by_alias=True, exclude_unset=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError, ValueError) as error:
        # The first line: the rest is the schema.
        yield str(error).split("\n\n", 1)[0]
    else:
        yield from (f"no such field: {path}" for path in unknown(document, read, ""))


def unknown(said: Any, read: Any, path: str) -> Iterator[str]:
    """Paths of fields that were said and that the model has not read."""
    if isinstance(said, dict) and isinstance(read, dict):
        for key, value in said.items():
            if key in read:
                yield from unknown(value, read[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(said, list) and isinstance(read, list):
        for at, (one, other) in enumerate(zip(said, read, strict=True)):
            yield from unknown(one, other, f"{path}[{at}]")


def main() -> int:
    """Prints the faults."""
    found = []
    for name in sys.argv[1:]:
        for document in yaml.load_all(Path(name).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader):
            where = f"{name}: {document['kind']} {document['metadata']['name']}"
            found += [f"{where}: {fault}" for fault in faults(document)]
    print("\n".join(found))  # noqa: T201 - its output
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
