"""The FileDescriptorSet of the transcoded services, out of the generated modules."""

from __future__ import annotations

import base64

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.rpc import error_details_pb2
from weir.inference.v1 import predictions_pb2
from weir.openai.v1 import openai_pb2
from weir.registry.v1 import registry_pb2


def transcoder_descriptors() -> str:
    """The services with everything that they import, base64, dependencies first as Envoy wants them; and the details
    of errors, without which Envoy sends no body at all for a status that carries some.
    """
    found = descriptor_pb2.FileDescriptorSet()
    seen: set[str] = set()
    for file in (
        openai_pb2.DESCRIPTOR,
        predictions_pb2.DESCRIPTOR,
        registry_pb2.DESCRIPTOR,
        error_details_pb2.DESCRIPTOR,
    ):
        _add(file, found, seen)
    return base64.b64encode(found.SerializeToString(deterministic=True)).decode()


def _add(file: FileDescriptor, into: descriptor_pb2.FileDescriptorSet, seen: set[str]) -> None:
    if file.name in seen:
        return
    seen.add(file.name)
    for dependency in file.dependencies:
        _add(dependency, into, seen)
    file.CopyToProto(into.file.add())
