"""Envoy as the proxy of a deployment."""
