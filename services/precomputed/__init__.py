"""Precomputed answers by entity key, served online, with the model where there is none."""
