"""8-bit graphs: calibration, the forms of quantization, and the search for layers to leave out."""
