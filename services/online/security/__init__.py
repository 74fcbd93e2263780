"""Access control: tokens, TLS, and the errors that callers may see."""
