"""What an operator asks of a worker, on a listener of its own."""
