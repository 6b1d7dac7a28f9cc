"""Checks what a wheel holds: only `aspen_mp`, no sources of extensions. Usage: wheel_contents.py FILE.whl"""

import sys
import zipfile
from pathlib import PurePosixPath


def main(path: str) -> None:
    names = [PurePosixPath(n) for n in zipfile.ZipFile(path).namelist()]
    tops = {n.parts[0] for n in names if not n.parts[0].endswith(".dist-info")}
    if tops != {"aspen_mp"}:
        sys.exit(f"{path}: top-level entries other than aspen_mp: {sorted(tops - {'aspen_mp'})}")
    sources = sorted(str(n) for n in names if n.suffix in {".pyx", ".pxd", ".c", ".h"} or n.name == "CMakeLists.txt")
    if sources:
        sys.exit(f"{path}: build sources inside: {sources}")
    for part in ("shm", "workers", "planner", "bench", "config"):
        if not any(n.parts[:2] == ("aspen_mp", part) for n in names):
            sys.exit(f"{path}: aspen_mp/{part} is missing")
    if PurePosixPath("aspen_mp/py.typed") not in names:
        sys.exit(f"{path}: aspen_mp/py.typed is missing")
    print(f"{path}: {len(names)} files, all of them below aspen_mp")


if __name__ == "__main__":
    main(sys.argv[1])
