"""Serve one or several models over HTTP and gRPC."""
