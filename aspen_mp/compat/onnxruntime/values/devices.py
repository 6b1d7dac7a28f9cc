"""onnxruntime's words for devices and memory. There is one device here, the CPU; the others can be named and not used."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from aspen_mp.compat.onnxruntime.errors import Unavailable


class OrtDeviceVendorId(IntEnum):
    """Makers of devices, by their PCI numbers."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


class OrtAllocatorType(IntEnum):
    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(IntEnum):
    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(IntEnum):
    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemoryInfoDeviceType(IntEnum):
    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtHardwareDeviceType(IntEnum):
    CPU = 0
    GPU = 1
    NPU = 2


class OrtExecutionProviderDevicePolicy(IntEnum):
    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


_KINDS: Final = {"cpu": 0, "gpu": 1, "cuda": 1, "fpga": 2, "npu": 3, "cann": 3, "dml": 1, "webgpu": 1}
_VENDORS: Final = {"cuda": OrtDeviceVendorId.NVIDIA, "dml": OrtDeviceVendorId.MICROSOFT, "cann": OrtDeviceVendorId.HUAWEI}


class OrtDevice:
    """A device: `make("cpu", 0)`. Or, as in onnxruntime's lower layer, of numbers: ``OrtDevice(kind, memory, [vendor,] device)``."""

    __slots__ = ("_device", "_kind", "_memory", "_vendor")

    def __init__(self, *numbers: Any) -> None:
        if len(numbers) == 1 and isinstance(numbers[0], OrtDevice):
            other = numbers[0]
            numbers = (other._kind, other._memory, other._vendor, other._device)
        if len(numbers) not in {3, 4} or not all(isinstance(n, int) for n in numbers):
            raise ValueError('a device is made by OrtDevice.make("cpu", 0)')
        self._kind: int = numbers[0]
        self._memory: int = numbers[1]
        self._vendor: int = numbers[2] if len(numbers) == 4 else 0
        self._device: int = numbers[-1]

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """ValueError for a name that onnxruntime does not know either."""
        if ort_device_name not in _KINDS:
            raise ValueError(f"Unsupported device type: {ort_device_name}")
        vendor = _VENDORS.get(ort_device_name, 0) if vendor_id < 0 else vendor_id
        return OrtDevice(_KINDS[ort_device_name], 0, int(vendor), device_id)

    def device_id(self) -> int:
        return self._device

    def device_type(self) -> int:
        return self._kind

    def device_vendor_id(self) -> int:
        return self._vendor

    def device_mem_type(self) -> int:
        return self._memory

    vendor_id = device_vendor_id
    mem_type = device_mem_type

    def _get_c_device(self) -> OrtDevice:
        return self

    @staticmethod
    def cpu() -> int:
        return _KINDS["cpu"]

    @staticmethod
    def gpu() -> int:
        return _KINDS["gpu"]

    @staticmethod
    def cuda() -> int:
        return _KINDS["cuda"]

    @staticmethod
    def cann() -> int:
        return _KINDS["cann"]

    @staticmethod
    def dml() -> int:
        return _KINDS["dml"]

    @staticmethod
    def fpga() -> int:
        return _KINDS["fpga"]

    @staticmethod
    def npu() -> int:
        return _KINDS["npu"]

    @staticmethod
    def webgpu() -> int:
        return _KINDS["webgpu"]

    @staticmethod
    def default_memory() -> int:
        return 0


@dataclass(frozen=True, slots=True)
class OrtMemoryInfo:
    """onnxruntime's description of an allocator. Nothing here allocates by it."""

    name: str
    allocator_type: OrtAllocatorType
    device_id: int
    mem_type: OrtMemType = OrtMemType.DEFAULT
    device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT
    device_vendor_id: int = 0

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        return OrtMemoryInfo(name, allocator_type, device_id, OrtMemType.DEFAULT, mem_type, vendor_id)


CPU_MEMORY: Final = OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0)


class OrtArenaCfg:
    """Numbers for an arena, or a dict of them; taken and not used."""

    __slots__ = (
        "arena_extend_strategy",
        "initial_chunk_size_bytes",
        "initial_growth_chunk_size_bytes",
        "max_dead_bytes_per_chunk",
        "max_mem",
        "max_power_of_two_extend_bytes",
    )

    def __init__(self, *values: Any) -> None:
        for name in self.__slots__:
            setattr(self, name, -1)
        if len(values) == 1 and isinstance(values[0], dict):
            given = values[0]
        elif len(values) == 4:
            order = ("max_mem", "arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk")
            given = dict(zip(order, values, strict=True))
        else:
            raise TypeError("OrtArenaCfg takes four integers or a dict")
        for name, value in given.items():
            if name not in self.__slots__:
                raise ValueError(f"OrtArenaCfg has no {name!r}. It has {', '.join(self.__slots__)}")
            setattr(self, name, int(value))


def on_cpu(device: Any, device_id: Any = 0) -> None:
    """Checks that memory is asked for on the CPU. `device`: a name or an `OrtDevice`; onnxruntime's own will do. Unavailable otherwise."""
    if isinstance(device, str):
        device = OrtDevice.make(device, device_id)
    if device.device_type() != 0:
        raise Unavailable("aspen-mp has memory of the CPU alone: use the device 'cpu'")
