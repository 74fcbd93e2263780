"""The stream runner: the model of a Bento over an unbounded stream, in micro-batches."""
