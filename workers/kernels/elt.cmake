# Sources of the element-wise, reducing and moving kernels (without .c), each compiled once per instruction set.
set(ELT_FAMILIES unary binary copy gather norm reduce softmax)
# Integer arithmetic wraps, as ONNX and numpy have it.
set_source_files_properties(reduce.c PROPERTIES COMPILE_OPTIONS -fwrapv)
