"""Counters and histograms of requests and batches, and their export to Prometheus."""
