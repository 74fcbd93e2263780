"""Settings of tokens and TLS, and the errors that callers may see."""
