"""Precomputed recommendations, with the model for everyone else."""
