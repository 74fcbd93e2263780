"""Push a Bento to a folder, an OCI image layout or MLflow, and pull it from there."""
