"""TensorRT: engines built from ONNX on the machine that runs them, kept in a cache, and run.

The library can end the process that uses it, so it is asked what it can do and told to
build in processes of its own only. `options`, `profile` and `key` are pure; nothing here
imports TensorRT or touches a GPU before a session is asked for.
"""
