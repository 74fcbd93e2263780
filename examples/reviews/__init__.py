"""Text classification: a small transformer with its tokenizer."""
