"""The runtime that MLServer serves in `bench serve`: onnxruntime, with a session in each of MLServer's workers.

MLServer imports it; `peer_servers.py` writes the settings.
"""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt
from mlserver import MLModel
from mlserver.codecs import Base64Codec, NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse, Parameters, RequestInput, ResponseOutput

from aspen_mp.bench.own_session import own_session


class OnnxRuntime(MLModel):
    """Answers numbers with numbers, and base64 with base64."""

    async def load(self) -> bool:
        """Makes the session."""
        parameters = self.settings.parameters
        self._session = own_session(parameters.uri, parameters.extra["cores"])
        self._names = [each.name for each in self._session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """All outputs."""
        results = self._session.run(None, {each.name: self._array(each) for each in payload.inputs})
        in_base64 = any(each.datatype == "BYTES" for each in payload.inputs)
        encode = _base64 if in_base64 else NumpyCodec.encode_output
        return InferenceResponse(model_name=self.name, outputs=[encode(*each) for each in zip(self._names, results, strict=True)])

    def _array(self, tensor: RequestInput) -> npt.NDArray[np.generic]:
        if tensor.datatype != "BYTES":
            return np.asarray(self.decode(tensor, default_codec=NumpyCodec))
        (raw,) = Base64Codec.decode_input(tensor)
        return np.frombuffer(raw, tensor.parameters.dtype).reshape(tensor.shape)


def _base64(name: str, array: npt.NDArray[np.generic]) -> ResponseOutput:
    parameters = Parameters(content_type=Base64Codec.ContentType, dtype=array.dtype.name)
    return ResponseOutput(name=name, shape=array.shape, datatype="BYTES", parameters=parameters, data=[base64.b64encode(array.tobytes())])
