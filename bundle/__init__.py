"""The contract between optimizing, building, serving and promoting a model.

A *bundle* is a directory with a manifest that lists every file in it by size and sha256. Its
digest, the sha256 of the canonical manifest, identifies the model everywhere else. This package
imports no machine-learning library.
"""
