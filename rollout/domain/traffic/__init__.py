"""Counters of requests and what follows from them: latency, splits, scaling, goals."""
