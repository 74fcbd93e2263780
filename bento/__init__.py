"""Build, containerize, push and pull Bentos; generated clients and manifests. Not in a Bento."""
