"""The model for MLServer, whose own adaptive batching joins the requests."""

from __future__ import annotations

from mlserver import MLModel  # type: ignore[import-not-found]
from mlserver.codecs import NumpyCodec  # type: ignore[import-not-found]
from mlserver.types import InferenceRequest, InferenceResponse  # type: ignore[import-not-found]
from runtime import open_model  # type: ignore[import-not-found]


class Runtime(MLModel):  # type: ignore[misc]
    """Runs one joined request."""

    async def load(self) -> bool:
        self.session = open_model()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0])
        (y,) = self.session.run(None, {"x": x})
        output = NumpyCodec.encode_output("y", y)
        return InferenceResponse(model_name=self.name, outputs=[output])
