"""The process that watches one deployment: supervise, evaluate each tick, move traffic, report."""
