"""The part of a client that is the same for every model; copied into each generated package."""
