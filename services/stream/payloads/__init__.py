"""What a message's bytes mean: one module for each form of payload."""
