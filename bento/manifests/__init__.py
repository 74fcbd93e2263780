"""YAML that runs a Bento's image on Kubernetes, KServe, Compose or BentoCloud."""
