"""E-values, bursts of faults, drift of distributions, and what a verdict is."""
