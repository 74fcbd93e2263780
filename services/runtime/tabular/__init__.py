"""Columns of a table to tensors, and outputs to columns."""
