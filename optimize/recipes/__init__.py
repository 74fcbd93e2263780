"""The optimizations: each makes a variant's graph out of the exported one.

A recipe only writes files; whether its variant is any good is judged elsewhere.
"""

from __future__ import annotations

from optimize.recipes.base import Recipe
from optimize.recipes.fp16 import Fp16
from optimize.recipes.fp32 import Fp32
from optimize.recipes.int8_cpu import Int8Cpu

RECIPES: tuple[Recipe, ...] = (Fp32(), Fp16(), Int8Cpu())

__all__ = ["RECIPES", "Recipe"]
