"""What a request says about its sizes is compared before anything is made: names, types, shapes and bytes of any size, drawn."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections.abc import Callable
from typing import Any

import folders
import msgspec
import numpy as np
import pytest
import serving_tools  # noqa: F401 (skips these without the extra)
from cost_tools import read
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aspen_mp.client.signature import ValueInfo
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.memory.regions import NONE, Region, Regions
from aspen_mp.serving.protocol.datatypes import NAMES
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.shm.errors import RequestError

EXAMPLES = 5000 if os.environ.get("ASPEN_MP_TIER") == "long" else 150
LIMITS = Limits(body=4096, json=2048, strings=50)
INPUTS = [ValueInfo("x", ("n", 16), np.dtype(np.float32)), ValueInfo("s", ("n",), np.dtype(object))]
HUGE = [0, 1, 2, 3, 16, 100, 1 << 20, 1 << 31, 1 << 32, 1 << 40, (1 << 48) - 1]
SIZES = st.sampled_from([*HUGE, 64, 128, 3221225472]) | st.integers(0, 5000)


class Made(list[int]):
    """Bytes of the arrays that were asked for."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    found, empty = Made(), np.empty

    def noted(shape: Any, dtype: Any = float, *more: Any) -> Any:
        found.append(math.prod(shape if isinstance(shape, list | tuple) else [shape]) * np.dtype(dtype).itemsize)
        assert found[-1] <= 1 << 20  # before it is asked for
        return empty(shape, dtype, *more)

    monkeypatch.setattr(np, "empty", noted)
    return found


def status_of(work: Callable[[], Any]) -> int:
    """What a request is answered with; 200 where it was read."""
    try:
        work()
    except (RequestError, Refused) as error:
        return getattr(error, "status", 400)
    return 200


TENSORS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["x", "x", "s", "z", "X" * 300]),
            "datatype": st.sampled_from(["FP32", "FP32", "BYTES", "INT8", "FP64", "BF16", "QQ"]),
            "shape": st.lists(st.sampled_from(HUGE), max_size=4) | st.just([1, 16]) | st.just([2, 16]),
            "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": SIZES}),
        },
        optional={"data": st.sampled_from([[], [1.0] * 16, ["a", "b"], [[1.0] * 16] * 2])},
    ),
    max_size=3,
)


def fits(tensors: list[dict[str, Any]], follow: int, *, known: bool) -> bool:
    """Whether the bytes of the tensors can be what follows, by the rules of the protocol."""
    total = 0
    for tensor in tensors:
        dtype, size = NAMES.get(tensor["datatype"]), tensor["parameters"].get("binary_data_size")
        n = math.prod(tensor["shape"])
        info = next((each for each in INPUTS if each.name == tensor["name"]), None)
        if info is None or dtype != info.dtype:
            return False
        if size is None:
            if len(np.ravel(tensor.get("data", [0, 0, 0]))) != n or "data" not in tensor:
                return False
        elif (4 * n > size or n > LIMITS.strings) if dtype.hasobject else n * dtype.itemsize != size:
            return False
        total += size or 0
    return len({tensor["name"] for tensor in tensors}) == len(tensors) and (total == follow if known else total <= LIMITS.body)


@given(tensors=TENSORS, follow=st.integers(0, 300), known=st.booleans())
@example(tensors=[{"name": "z", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 3221225472}}], follow=0, known=True)
@example(tensors=[{"name": "s", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 1 << 40}}], follow=0, known=False)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_made_for_what_a_body_cannot_have(made: Made, tensors: list[dict[str, Any]], follow: int, known: bool) -> None:
    """The bytes themselves are zeros: numbers 0, or empty strings."""
    head = json.dumps({"inputs": tensors}).encode()
    made.clear()
    status = status_of(lambda: read(head, bytes(follow), INPUTS, LIMITS, said=len(head) + follow if known else None))
    assert status in {200, 400, 413}
    if status == 200:
        assert fits(tensors, follow, known=True)
    elif fits(tensors, follow, known=True):  # only the strings may be none
        assert any(tensor["datatype"] == "BYTES" for tensor in tensors)
    room = LIMITS.body if not known else follow
    assert sum(each for each in made if each) <= 3 * room + 8 * 200, made  # bytes, strings made of them, and numbers in JSON


@given(st.integers(0, 1 << 47), st.integers(0, 1 << 47), st.lists(st.sampled_from(HUGE), max_size=3), st.sampled_from(["FP32", "BYTES"]))
@example(1 << 47, 1 << 47, [1], "FP32")
@example(0, 1 << 40, [1 << 38], "FP32")
@example(0, 64, [1, 16], "FP32")
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_made_for_a_place_that_its_region_does_not_have(made: Made, offset: int, size: int, shape: list[int], kind: str) -> None:
    from aspen_mp.serving.protocol import inference
    from aspen_mp.serving.protocol.body import Body, Budget

    fd = os.memfd_create("r")
    os.ftruncate(fd, 64)
    regions = Regions({"r": Region(fd, 0, 64)}, "")
    parameters = {"shared_memory_region": "r", "shared_memory_offset": offset, "shared_memory_byte_size": size}
    name = "x" if kind == "FP32" else "s"
    text = json.dumps({"inputs": [{"name": name, "datatype": kind, "shape": shape, "parameters": parameters}]}).encode()

    async def work() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": text}

        with Body(receive, {}, LIMITS, Budget(LIMITS.pending)) as body:
            await inference.read(body, None, INPUTS, regions)

    made.clear()
    status = status_of(lambda: asyncio.run(work()))
    regions.close()
    assert status in {200, 400, 413}
    assert status != 200 or offset + size <= 64
    assert sum(made) <= 64 + 16 * 8


@given(
    st.lists(st.sampled_from([*HUGE, -1, -(1 << 63)]), max_size=4),
    st.sampled_from(["FP32", "BYTES"]),
    st.sampled_from(["x", "s", "z"]),
    st.integers(0, 300),
    st.booleans(),
)
@example([1 << 40, 1 << 40], "FP32", "x", 0, True)
@example([1 << 31, 1 << 32, 2], "FP32", "x", 0, True)
@example([1, 16], "FP32", "x", 64, True)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_made_for_what_a_message_does_not_have(
    made: Made, shape: list[int], datatype: str, name: str, nbytes: int, raw: bool
) -> None:
    pytest.importorskip("grpc", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")
    pytest.importorskip("google.protobuf", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")
    from aspen_mp.serving.grpc import codec, schema

    request = schema.ModelInferRequest(inputs=[{"name": name, "datatype": datatype, "shape": shape}])
    if raw:
        request.raw_input_contents.append(bytes(nbytes))
    else:
        request.inputs[0].contents.fp32_contents.extend([0.0] * (nbytes // 4))
    made.clear()
    status = status_of(lambda: asyncio.run(codec.read(request, INPUTS, None, NONE, LIMITS, lambda nbytes: None)))
    assert status in {200, 400, 413}
    assert status != 200 or (name != "z" and math.prod(shape) * 4 <= nbytes)
    assert sum(made) <= 4 * nbytes + 64


def test_every_limit_is_documented() -> None:
    """The reference has a row for each, with its default."""
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "s": 1}
    page = (folders.ROOT / "docs/reference/server.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+) ?(\w*) \|", page.partition("## Limits")[2].partition("\n## ")[0], re.MULTILINE)
    assert {name: int(number) * units.get(unit, 1) for name, number, unit in rows} == msgspec.structs.asdict(Limits())


@pytest.mark.parametrize("fields", [0, 3, 2000])
def test_fields_of_a_message_are_counted_before_it_is_parsed(fields: int) -> None:
    pytest.importorskip("google.protobuf", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")
    pytest.importorskip("grpc", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")
    from aspen_mp.serving.grpc import codec, schema

    request = schema.ModelInferRequest(model_name="m", raw_input_contents=[b"x" * 5000] * fields)
    if fields > 1000:
        with pytest.raises(RequestError, match="more than 256 inputs"):
            codec.check_sizes(memoryview(request.SerializeToString()), LIMITS)
        return
    codec.check_sizes(memoryview(request.SerializeToString()), LIMITS)
    request.inputs.add(name="x").contents.fp32_contents.extend([1.0] * 500)
    codec.check_sizes(memoryview(request.SerializeToString()), LIMITS)
    request.inputs.add(name="x").contents.fp32_contents.extend([1.0] * 100)
    with pytest.raises(Refused) as refused:
        codec.check_sizes(memoryview(request.SerializeToString()), LIMITS)
    assert refused.value.status == 413
