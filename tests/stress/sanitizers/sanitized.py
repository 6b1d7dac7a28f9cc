"""Runs Python on the package as `make sanitize` has built it: ``sanitized.py FOLDER -m pytest …``.

FOLDER has the instrumented extension modules (``cmake --install``); the Python sources are linked beside them. The interpreter itself is
not instrumented, so the sanitizers' libraries are loaded before it, and it starts without `site`: an editable installation would go first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = {"": "aspen_mp", "shm": "shm", "workers": "workers", "planner": "planner", "bench": "bench", "config": "config"}


def link_sources(site: Path) -> None:
    for name, folder in FOLDERS.items():
        for source in (ROOT / folder).rglob("*"):
            if source.suffix in {".py", ".toml", ".txt"} and source.is_file():
                target = site / "aspen_mp" / name / source.relative_to(ROOT / folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                target.symlink_to(source)


def library(name: str) -> str:
    compiler = os.environ.get("CC", "cc")
    path = subprocess.run([compiler, f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(path):
        sys.exit(f"{compiler} has no lib{name}.so: install gcc's sanitizer libraries")
    return path


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    if not list(site.glob("aspen_mp/workers/_dse*.so")):
        sys.exit(f"nothing is built in {site}: make sanitize")
    link_sources(site)
    environment = {
        **os.environ,
        "LD_PRELOAD": f"{library('asan')} {library('ubsan')}",
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT / "tests/stress/fuzz"), *(p for p in sys.path if "site-packages" in p)]),
        "PYTHONMALLOC": "malloc",  # so that every object has a block of its own
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:handle_segv=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
    }
    os.execve(sys.executable, [sys.executable, "-S", "-P", *sys.argv[2:]], environment)


if __name__ == "__main__":
    main()
