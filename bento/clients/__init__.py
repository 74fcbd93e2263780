"""Typed clients of a model, generated from its signature."""
