"""OrtValue, SparseTensor, OrtDevice and OrtMemoryInfo beside onnxruntime's: the same calls have the same results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from aspen_mp import errors
from aspen_mp.compat import onnxruntime as compat

BOTH = (compat, onnxruntime)
DTYPES = ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4), (1, 2, 0)])
def test_values_of_arrays(name: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape).astype(name)
    ours, theirs = (module.OrtValue.ortvalue_from_numpy(array) for module in BOTH)
    for call in ("shape", "data_type", "element_type", "tensor_size_in_bytes", "device_name", "is_tensor", "is_sparse_tensor", "has_value"):
        assert getattr(ours, call)() == getattr(theirs, call)(), call
    assert ours.is_tensor_sequence() == theirs.is_tensor_sequence()
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert ours.numpy().dtype == theirs.numpy().dtype
    assert ours.data_ptr() == array.ctypes.data, "an array in C order is not copied"
    assert ours.__dlpack_device__() == theirs.__dlpack_device__()


@pytest.mark.parametrize("name", DTYPES)
def test_values_of_types_and_of_bytes(name: str) -> None:
    dtype = np.dtype(name)
    for element in (dtype.type, compat.OrtValue.ortvalue_from_numpy(np.zeros(1, dtype)).element_type()):
        ours, theirs = (module.OrtValue.ortvalue_from_shape_and_type([2, 3], element) for module in BOTH)
        assert (ours.shape(), ours.data_type()) == (theirs.shape(), theirs.data_type())
        assert ours.numpy().dtype == dtype
    stored = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for element in (TensorProto.FLOAT8E4M3FN, TensorProto.INT8):
        ours, theirs = (module.OrtValue.ortvalue_from_numpy_with_onnx_type(stored, element) for module in BOTH)
        assert (ours.data_type(), ours.element_type()) == (theirs.data_type(), theirs.element_type())


def test_what_numpy_lacks_is_an_array_here() -> None:
    """A stated difference: onnxruntime has no array of bfloat16."""
    value = compat.OrtValue.ortvalue_from_numpy_with_onnx_type(np.array([0x3F80], np.uint16), TensorProto.BFLOAT16)
    assert value.data_type() == "tensor(bfloat16)"
    assert value.numpy().dtype == ml_dtypes.bfloat16
    assert float(value.numpy()[0]) == 1.0


def test_a_copy_where_the_order_is_another() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    for module in BOTH:
        value = module.OrtValue.ortvalue_from_numpy(array)
        np.testing.assert_array_equal(value.numpy(), array)
        assert value.data_ptr() != array.ctypes.data


def test_updates_go_into_the_memory_that_there_is() -> None:
    for module in BOTH:
        array = np.arange(4, dtype=np.float32)
        value = module.OrtValue.ortvalue_from_numpy(array)
        value.update_inplace(np.full(4, 7, np.float32))
        assert array.tolist() == [7, 7, 7, 7]
        with pytest.raises(RuntimeError):
            value.update_inplace(np.zeros(5, np.float32))
        with pytest.raises(TypeError):
            value.update_inplace([1, 2, 3, 4])


def test_tensors_are_copied() -> None:
    """A stated difference: onnxruntime has no copies from the CPU to the CPU."""
    array = np.zeros(4, np.float32)
    source = compat.OrtValue.ortvalue_from_numpy(np.arange(4, dtype=np.float32))
    compat.copy_tensors([source], [compat.OrtValue.ortvalue_from_numpy(array)])
    assert array.tolist() == [0, 1, 2, 3]


def test_dlpack_shares_memory() -> None:
    for name in DTYPES:
        array = np.arange(6).reshape(2, 3).astype(name)
        value = compat.OrtValue.ortvalue_from_numpy(array)
        for source in (value, array, value.__dlpack__(), value.to_dlpack(), onnxruntime.OrtValue.ortvalue_from_numpy(array)):
            found = compat.OrtValue.from_dlpack(source)
            assert found.data_ptr() == array.ctypes.data
            assert found.numpy().dtype == array.dtype or name == "bool"
        np.testing.assert_array_equal(np.from_dlpack(value), array)
        theirs = onnxruntime.OrtValue.from_dlpack(value)
        np.testing.assert_array_equal(theirs.numpy(), array)
    flags = compat.OrtValue.from_dlpack(np.array([0, 1], np.uint8), True)
    assert flags.data_type() == "tensor(bool)"
    with pytest.raises(TypeError):
        compat.OrtValue.from_dlpack(3)


def test_the_array_protocol() -> None:
    array = np.arange(4, dtype=np.float32)
    for module in BOTH:
        value = module.OrtValue.ortvalue_from_numpy(array)
        assert np.shares_memory(np.asarray(value), array)
        assert np.asarray(value, dtype=np.float64).dtype == np.float64
        assert not np.shares_memory(np.array(value, copy=True), array)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda module: module.OrtValue.ortvalue_from_numpy(np.array(["a"])),
        lambda module: module.OrtValue.ortvalue_from_numpy(np.array(["a"], object)),
        lambda module: module.OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32), "cuda", 0),
        lambda module: module.OrtValue.ortvalue_from_shape_and_type([2], np.float32, "cuda", 0),
        lambda module: module.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(2, np.uint8), TensorProto.BFLOAT16),
        lambda module: module.OrtDevice.make("nonsense", 0),
    ],
)
def test_what_is_refused(wrong: Any) -> None:
    for module in BOTH:
        with pytest.raises(Exception, match=r"(?i)support|alloc|package|memory|size|bytes|made of"):  # onnxruntime's are of many classes
            wrong(module)


def test_devices_and_memory() -> None:
    for kind in ("cpu", "cuda", "dml", "gpu", "npu"):
        ours, theirs = (module.OrtDevice.make(kind, 1) for module in BOTH)
        for call in ("device_id", "device_type", "device_vendor_id", "device_mem_type"):
            assert getattr(ours, call)() == getattr(theirs, call)(), (kind, call)
    infos = [m.OrtMemoryInfo("Cpu", m.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, m.OrtMemType.DEFAULT) for m in BOTH]
    for name in ("name", "device_id", "mem_type", "allocator_type", "device_mem_type", "device_vendor_id"):
        assert getattr(infos[0], name) == getattr(infos[1], name), name
    values = {"max_mem": 3, "arena_extend_strategy": 1}
    assert [m.OrtArenaCfg(values).max_mem for m in BOTH] == [3, 3]


def test_sparse_tensors() -> None:
    shape, values, indices = [9, 9], np.array([1.0, 2.0], np.float32), np.array([3, 5], np.int64)
    outer = np.array([0, 1, 2, *[2] * 7], np.int64)
    for module in BOTH:
        cpu = module.OrtDevice.make("cpu", 0)
        coo = module.SparseTensor.sparse_coo_from_numpy(shape, values, indices, cpu)
        assert (coo.dense_shape(), coo.data_type(), coo.device_name()) == (shape, "sparse_tensor(float)", "cpu")
        assert coo.format() == module.OrtSparseFormat.ORT_SPARSE_COO
        assert coo.as_coo_view().indices().tolist() == [3, 5]
        assert not coo.values().flags.writeable
        csr = module.SparseTensor.sparse_csr_from_numpy(shape, values, np.array([1, 1], np.int64), outer, cpu)
        assert (csr.as_csrc_view().inner().tolist(), csr.as_csrc_view().outer().tolist()) == ([1, 1], outer.tolist())
        with pytest.raises(RuntimeError):
            csr.to_cuda(module.OrtDevice.make("cuda", 0))
        value = module.OrtValue.ort_value_from_sparse_tensor(coo)
        assert value.is_sparse_tensor()
        assert value.as_sparse_tensor().values().tolist() == [1, 2]
    with pytest.raises(errors.AspenError, match="indices"):
        compat.SparseTensor.sparse_coo_from_numpy(shape, values, np.zeros(3, np.int64), compat.OrtDevice.make("cpu", 0))
