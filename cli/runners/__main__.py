"""`python -m cli.runners`: the entry point of an image."""

from cli.runners.image import image

image(prog_name="docker run IMAGE")
