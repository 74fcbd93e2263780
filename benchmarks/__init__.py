"""Measurements: ratios against a peer or a physical limit in the same run, never pass or fail."""
