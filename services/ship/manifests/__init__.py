"""What runs a Bento's image elsewhere: manifests of a cluster, of KServe, Compose and BentoCloud."""
