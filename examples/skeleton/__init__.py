"""The project that `mlctl init` writes: train, evaluate, release and gate one model."""
