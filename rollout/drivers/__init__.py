"""What a deployment runs on: Envoy, Kubernetes, processes of this machine."""
