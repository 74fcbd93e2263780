"""The commands, one per file, each named after what the user types."""
