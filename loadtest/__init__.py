"""A load generator for servers of the V2 protocol, a search for their settings, and parity."""
