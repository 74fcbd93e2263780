"""Whole stories with mlctl, run by `mlctl demo` and by the tests."""
