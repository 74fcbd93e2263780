"""Image classification: upload a JPEG, get a label."""
