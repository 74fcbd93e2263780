"""Databases that answers are written to: one module each, and what they share."""
