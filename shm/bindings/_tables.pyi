FIELDS: dict[str, tuple[tuple[str, str, int, int, int], ...]]
DTYPE_ROWS: tuple[tuple[str, int, int, int, int, str, int], ...]
KERNEL_ROWS: tuple[tuple[str, int, int, int, int, str, int], ...]
NUMBERS: dict[str, int]
SPACES: dict[str, int]
UNARY: dict[str, int]
BINARY: dict[str, int]
TERNARY: dict[str, int]
REDUCE: dict[str, int]
PAD_MODES: dict[str, int]
VALUE_KINDS: dict[str, int]
NUMBER_TABLES: dict[str, int]
ROLES: dict[str, int]
TRACE_WHATS: dict[str, int]
TRACE_CAMES: dict[str, int]
TRACE_SKIPPED: int
TRACE_CUT: int
LAYOUT_HASH: int
LIMITS: dict[str, int]
