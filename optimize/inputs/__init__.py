"""What an optimization starts from: the registered model, opened without its code, and its rows."""
