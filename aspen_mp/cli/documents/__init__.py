"""The documents that commands print with --json, as types: `python -m aspen_mp.cli.documents FOLDER` writes a JSON schema for each.

Sizes are in bytes, times in seconds unless the name says otherwise, moments in seconds since 1970. A key that is not always there has UNSET
as its default. The benchmarks' documents are described where they are made.
"""

from __future__ import annotations

from typing import Any, Final

from aspen_mp.cli.documents import schema
from aspen_mp.cli.documents.doctor import Doctor
from aspen_mp.cli.documents.plans import Coplan, Plan, Run
from aspen_mp.cli.documents.runtimes import Launched, Look, Metrics, Serving, Stopped
from aspen_mp.cli.documents.trace import Trace
from aspen_mp.control.wire.status import Document, Status, Worker
from aspen_mp.quantization.report import Report as Quantized


class Reason(Document):
    """`type`: the name of the error's class, or WrongUse for a command line that cannot be understood."""

    type: str
    message: str


class Error(Document):
    """Any command that fails: exit status 1, or 2 for wrong use."""

    error: Reason


DOCUMENTS: Final[dict[str, Any]] = {
    "launch": Launched,
    "serve": Serving,
    "run": Run,
    "plan": Plan,
    "quantize": Quantized,
    "coplan": Coplan,
    "status": Status,
    "top": Look,
    "metrics": Metrics,
    "trace": Trace,
    "add": list[Worker],
    "remove": list[Worker],
    "scale": list[Worker],
    "stop": Stopped,
    "doctor": Doctor,
    "error": Error,
}
"""By command: the type of its document."""


def schemas() -> dict[str, bytes]:
    """The text of each document's JSON schema, by the name of its file."""
    written = {}
    for name, kind in DOCUMENTS.items():
        title = "an error" if name == "error" else f"aspen-mp {name} --json"
        written[f"{name}.json"] = schema.text(kind, title)
    return written
