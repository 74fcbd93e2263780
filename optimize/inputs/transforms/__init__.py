"""User code before and after the model."""
