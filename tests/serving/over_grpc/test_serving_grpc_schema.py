"""The messages of gRPC: what is checked in is what the text says, and has the protocol's names and numbers."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")

from google.protobuf import descriptor_pb2

from aspen_mp.serving.grpc import schema


def test_the_descriptor_is_the_text_compiled(tmp_path: Path) -> None:
    """To write it again, run the command of this test with the folder of `service.proto` as the target."""
    pytest.importorskip("grpc_tools", reason="needs the package grpcio-tools")
    folder = Path(str(resources.files("aspen_mp.serving.grpc")))
    out = tmp_path / schema.DESCRIPTOR
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--descriptor_set_out={out}", "service.proto"]
    subprocess.run(command, check=True)
    fresh, kept = (descriptor_pb2.FileDescriptorSet.FromString((place / schema.DESCRIPTOR).read_bytes()) for place in (tmp_path, folder))
    assert fresh == kept


def test_names_and_numbers_are_those_of_clients() -> None:
    """A message of ours has no field that Triton's has not, or has otherwise. Triton has more."""
    theirs = pytest.importorskip("tritonclient.grpc.service_pb2", reason="needs the package tritonclient[grpc]")
    wanted = theirs.DESCRIPTOR.services_by_name["GRPCInferenceService"]

    def compare(ours: Any, other: Any) -> None:
        for field in ours.fields:
            like = other.fields_by_name[field.name]
            assert (field.number, field.type, field.is_repeated) == (like.number, like.type, like.is_repeated), field.full_name
            if field.message_type is not None:
                compare(field.message_type, like.message_type)

    for method in schema.methods():
        like = wanted.methods_by_name[method.name]
        assert (method.client_streaming, method.server_streaming) == (like.client_streaming, like.server_streaming)
        compare(method.input_type, like.input_type)
        compare(method.output_type, like.output_type)
