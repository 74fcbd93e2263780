"""Convert columns of a table to tensors, and values to JSON; used by both runners."""
