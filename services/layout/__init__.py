"""How a Bento lies on disk: find its models, verify them, open them."""
