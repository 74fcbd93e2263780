"""The V2 protocol over gRPC: the server, the protocol's methods, errors as statuses."""
