"""`python -m mlctl.cli.runners`: the entry point of an image."""

from mlctl.core.garbage import rare_collection

with rare_collection():
    from mlctl.cli.runners.image import image

    image(prog_name="docker run IMAGE")
