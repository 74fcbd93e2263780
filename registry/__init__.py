"""The MLflow model registry as source and sink: models come in, proven variants go back.

Everything that the registry says (names, aliases, tags, artifacts) is untrusted data:
it is parsed strictly, verified by digest and never used as a path. MLflow is imported
inside the functions that need it.
"""
