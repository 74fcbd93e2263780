"""A load generator for models behind the V2 protocol, and a search for a server's settings."""
