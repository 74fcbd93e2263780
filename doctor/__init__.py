"""Checks of this machine for `mlctl doctor`."""
