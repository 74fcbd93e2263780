"""Other model servers, each in its own virtual environment, for `benchmarks.online`.

`python -m benchmarks.peers install DIR` installs them from the package registry; building, testing
and serving need none of them.
"""
