"""The messages of the protocol as classes, from the compiled descriptor beside this file.

They live in a pool of their own. In the default pool, a client library for the same protocol in the same process would clash with them.
"""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE: Final = "inference.GRPCInferenceService"
DESCRIPTOR: Final = "service.pb"
"""`service.proto`, compiled to a FileDescriptorSet."""

_pool = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString((resources.files(__package__) / DESCRIPTOR).read_bytes()).file:
    _pool.Add(_file)  # type: ignore[no-untyped-call, unused-ignore]


def message(name: str) -> Any:
    """The class of a message of the package ``inference``."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"inference.{name}"))  # type: ignore[no-untyped-call, unused-ignore]


def methods() -> list[Any]:
    """The methods of the service: descriptors with `name`, `input_type`, `output_type`, `client_streaming`."""
    return list(_pool.FindServiceByName(SERVICE).methods)  # type: ignore[no-untyped-call, unused-ignore]


def class_of(descriptor: Any) -> Any:
    """The class of a message by its descriptor."""
    return message_factory.GetMessageClass(descriptor)


ModelConfigResponse: Final = message("ModelConfigResponse")
ModelInferRequest: Final = message("ModelInferRequest")
ModelInferResponse: Final = message("ModelInferResponse")
ModelMetadataResponse: Final = message("ModelMetadataResponse")
ModelReadyResponse: Final = message("ModelReadyResponse")
ModelStatisticsResponse: Final = message("ModelStatisticsResponse")
ModelStreamInferResponse: Final = message("ModelStreamInferResponse")
RepositoryIndexResponse: Final = message("RepositoryIndexResponse")
RepositoryModelLoadResponse: Final = message("RepositoryModelLoadResponse")
RepositoryModelUnloadResponse: Final = message("RepositoryModelUnloadResponse")
ServerLiveResponse: Final = message("ServerLiveResponse")
ServerMetadataResponse: Final = message("ServerMetadataResponse")
ServerReadyResponse: Final = message("ServerReadyResponse")
SystemSharedMemoryRegisterResponse: Final = message("SystemSharedMemoryRegisterResponse")
SystemSharedMemoryStatusResponse: Final = message("SystemSharedMemoryStatusResponse")
SystemSharedMemoryUnregisterResponse: Final = message("SystemSharedMemoryUnregisterResponse")
