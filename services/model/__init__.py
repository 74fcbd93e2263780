"""Run one model: sessions, scorer, transforms, warm-up, golden rows. Every pattern uses it."""
