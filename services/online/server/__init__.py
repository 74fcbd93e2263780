"""The seam to BentoML: the service it runs, the Bentos it builds and where they are."""
