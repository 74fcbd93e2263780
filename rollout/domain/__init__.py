"""What the traffic proves of a candidate: counters, evidence, gates, verdicts."""
