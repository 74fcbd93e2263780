"""What runs a Bento's image elsewhere: on a cluster, KServe, Compose or BentoCloud, as YAML."""
