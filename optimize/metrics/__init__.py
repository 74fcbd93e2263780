"""Scores, their confidence, parity and latency."""
