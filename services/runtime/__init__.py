"""Run a model: sessions, transforms, padding, warm-up and golden rows; used by every pattern."""
