"""System calls of processes that Python does not offer."""

def set_death_signal() -> None:
    """SIGKILL for this process when the thread that is its parent ends."""

def set_name(name: str) -> None:
    """The name that top and ps show, at most 15 bytes."""

def fork_sibling() -> int:
    """As `os.fork`, but the new process is a child of this process's parent. For processes of one thread. Raises OSError."""

def faults_tell_scarcity(status: int) -> None:
    """SIGSEGV and SIGABRT that befall this process while it can have no more memory end it with `status` instead. The cause is libraries
    that do not check allocations. For processes of one thread. Raises OSError."""
