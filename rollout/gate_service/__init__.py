"""The gates as a service: verdicts on a pair of servers for rollouts that somebody else drives."""
