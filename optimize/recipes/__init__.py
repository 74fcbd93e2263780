"""The optimizations: each makes a variant's graph out of the exported one.

A recipe only writes files; whether its variant is any good is judged elsewhere.
"""

from optimize.recipes.base import Recipe
from optimize.recipes.discovery import discover, select

__all__ = ["Recipe", "discover", "select"]
