"""`python -m cli.runners`: the entry point of an image."""

from bundle.garbage import rare_collection

with rare_collection():
    from cli.runners.image import image

    image(prog_name="docker run IMAGE")
