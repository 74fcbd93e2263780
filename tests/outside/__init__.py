"""A zoo of models that people bring, each compared with its source on rows that no proof saw."""
