"""8- and 4-bit graphs by `onnxruntime.quantization`, and the search for layers to leave out."""
