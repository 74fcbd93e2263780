"""The processes of a deployment on this machine: replicas, their keeper, their logs."""
