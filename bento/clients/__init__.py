"""Clients of a model, written for it from its signature."""
