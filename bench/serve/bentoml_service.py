"""The service that BentoML serves in `bench serve`: onnxruntime, with a session in each of BentoML's workers.

BentoML imports it; `peer_servers.py` says what is in the environment variable `SETTINGS`.
"""

from __future__ import annotations

import json
import os
from typing import Annotated

import bentoml
from bentoml.validators import ContentType

from aspen_mp.bench.own_session import own_session
from aspen_mp.bench.serve.requests import SETTINGS, packed, unpacked

_settings = json.loads(os.environ[SETTINGS])
_Bytes = Annotated[bytes, ContentType("application/octet-stream")]


@bentoml.service(workers=_settings["workers"], logging={"access": {"enabled": False}})
class OnnxRuntime:
    """BentoML calls it in one thread of each worker: more requests at a time would only fight for the session's threads."""

    def __init__(self) -> None:
        self._session = own_session(_settings["model"], _settings["cores"])
        self._names = [each.name for each in self._session.get_inputs()]

    @bentoml.api
    def infer(self, inputs: _Bytes, /) -> _Bytes:
        """All outputs, as `requests.packed` writes them. `inputs`: the same of all inputs, in the model's order."""
        return packed(self._session.run(None, dict(zip(self._names, unpacked(inputs), strict=True))))
