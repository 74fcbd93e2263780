"""Continuous generation with a causal language model; used by the server and by batch jobs."""
