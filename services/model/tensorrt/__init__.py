"""TensorRT through ONNX Runtime's provider: engines built on the machine that serves, and cached.

ONNX Runtime builds the engines and runs them. This package chooses the provider's options, keeps
the engines under a key of everything that they depend on, and builds them in a worker process,
because the library can end or block the process that uses it.
"""
