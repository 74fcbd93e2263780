"""Batch: the very scorer that serves online, over tables, each row exactly once."""
