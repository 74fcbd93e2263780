"""The forms of the Open Inference Protocol (V2): tensors as JSON, as raw bytes and as messages."""
