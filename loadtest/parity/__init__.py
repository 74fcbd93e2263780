"""Compare the outputs of one model over every path: HTTP, gRPC, batch jobs and streams."""
