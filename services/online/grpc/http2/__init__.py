"""The gRPC server on an HTTP/2 core in Python, at a small cost for each call."""
