"""Text models of the transformers library."""
