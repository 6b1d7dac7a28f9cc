# Sources of the element-wise, reducing and moving kernels (without .c), each compiled once per instruction set.
set(ELT_FAMILIES)
