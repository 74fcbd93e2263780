"""What is sealed and published: evidence, the bundle, and the report."""
