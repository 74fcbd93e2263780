"""Send a Bento to another store, an archive or an OCI layout, and take it from there."""
