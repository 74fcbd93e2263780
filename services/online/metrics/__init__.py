"""What is counted of requests and batches, and how Prometheus is told."""
