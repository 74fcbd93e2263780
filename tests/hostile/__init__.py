"""What 30 hostile connections cost one honest client: `make hostile`."""
