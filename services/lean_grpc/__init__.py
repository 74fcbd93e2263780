"""gRPC on an HTTP/2 core in Python: the same handlers as grpc.aio's server, at less cost a call."""
