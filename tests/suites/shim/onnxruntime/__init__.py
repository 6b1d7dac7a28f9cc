"""`onnxruntime` as other projects' tests import it: names of `aspen_mp.compat.onnxruntime`, tools (quantization, transformers …), which are
Python, of the real package beside it."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path

from aspen_mp.compat import onnxruntime as _ours
from aspen_mp.compat.onnxruntime import *  # noqa: F403

_HERE = Path(__file__).resolve().parent


def _real() -> list[str]:
    """The folder of the real package, if it is installed."""
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE.parent]
    spec = importlib.machinery.PathFinder.find_spec("onnxruntime", others)
    return [] if spec is None or spec.origin is None else [str(Path(spec.origin).parent)]


__path__ = [str(_HERE), *_real()]
__version__ = _ours.SURFACE
