"""Causal language models: judged by perplexity and continuations."""
