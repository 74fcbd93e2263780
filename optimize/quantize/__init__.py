"""8-bit graphs: calibration, the forms of quantization, and the search for layers to leave out."""

# The recipes stand on this package, and it on their seam: whoever comes first, they load first.
import optimize.recipes  # noqa: F401
