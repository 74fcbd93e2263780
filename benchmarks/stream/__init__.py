"""Streams: messages a second, CPU and latency of `mlctl stream run` beside the bare client."""
