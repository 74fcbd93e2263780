"""Other model servers, each in an environment of its own, for benchmarks/online.

`python -m benchmarks.peers install DIR` makes the environments from the package registry;
none of them is needed to build, test or serve.
"""
