"""Open the engine of a bundle with a language model."""

from __future__ import annotations

import psutil

from mlctl.bundle.manifest import GENERATION_FOLDER
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.decoder import Decoder
from mlctl.services.generate.engine import ContinuousBatch
from mlctl.services.generate.text import TextCodec
from mlctl.services.model.settings import RuntimeSettings


def open_engine(bundle: VerifiedBundle, settings: RuntimeSettings) -> ContinuousBatch:
    """Load the model of a verified bundle; INVALID_INPUT if its KV cache does not fit in memory."""
    generation = bundle.manifest.generation
    assert generation is not None
    folder = bundle.root / GENERATION_FOLDER
    size = min(generation.context_length, settings.max_sequence_tokens)
    decoder = Decoder(folder, settings.max_sequences, size, settings.threads)
    available = psutil.virtual_memory().available
    if decoder.cache_bytes > available:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the KV cache of {settings.max_sequences} sequences of {size} tokens takes "
            f"{decoder.cache_bytes / 1e9:.1f} GB, {available / 1e9:.1f} GB of memory are free",
            "Lower MLCTL_MAX_SEQUENCES or MLCTL_MAX_SEQUENCE_TOKENS.",
        )
    return ContinuousBatch(decoder, TextCodec(folder, generation), generation.eos_ids)
