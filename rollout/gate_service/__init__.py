"""The gates as a service: verdicts on a pair of servers for rollouts driven by another tool."""
