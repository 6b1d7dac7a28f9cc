# Sources of the element-wise, reducing and moving kernels (without .c), each compiled once per instruction set.
set(ELT_FAMILIES unary binary functions cast quantize copy pad gather reduce scan softmax norm moments lrn resize gridsample roialign deform topk scatter trees scores svm)
# Integer arithmetic wraps, as ONNX and numpy have it.
set_source_files_properties(reduce.c scan.c scatter.c PROPERTIES COMPILE_OPTIONS -fwrapv)
# Selections between computed values become vector code only when comparisons need not raise exceptions, which nobody looks at.
set_source_files_properties(functions.c PROPERTIES COMPILE_OPTIONS -fno-trapping-math)
