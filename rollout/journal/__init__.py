"""What is recorded of deployments and rollouts, and where."""
