"""Runs the blocks of one page in the directory where it is started: ``python run_page.py PAGE``.

The exit status is 1 where a block fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import linecache
import os
import signal
import subprocess
import sys
import traceback
import types
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import folders
from blocks import Block, blocks

PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 10.0


def run(block: Block, page: str, module: types.ModuleType) -> None:
    """Run a block; what it raises is the page's fault."""
    if block.action == "file":
        path = Path(block.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
    elif block.action == "sh":
        subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], check=True, stdin=subprocess.DEVNULL)
    else:
        exec(compile("\n" * block.line + block.text, page, "exec"), module.__dict__)


def end_processes() -> None:
    """End what the page has left: its orphans are children of this process."""
    left = psutil.Process().children(recursive=True)
    for process in left:
        end(process, signal.SIGTERM)
    for process in psutil.wait_procs(left, GRACE_S)[1]:
        end(process, signal.SIGKILL)


def end(process: psutil.Process, number: signal.Signals) -> None:
    """Send a signal to a process, which may end by itself at any moment."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def main(page: Path) -> int:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    text = page.read_text(encoding="utf-8")
    name = os.path.relpath(page, folders.ROOT)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # tracebacks show the lines of the page
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path.insert(0, os.getcwd())
    try:
        for block in blocks(text):
            print(f"--- {name}, line {block.line + 1}: {block.action} {block.name}", flush=True)
            run(block, name, module)
            sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        module.__dict__.clear()
        gc.collect()
        end_processes()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
