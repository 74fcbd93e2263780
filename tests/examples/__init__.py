"""Tests of what `mlctl init` and the tutorial give a new user."""
