"""File formats: how each is read in pieces and written in parts."""
