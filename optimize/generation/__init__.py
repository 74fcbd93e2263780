"""Causal language models: built for onnxruntime-genai, judged by perplexity and continuations."""
