"""Recipes: each makes a variant's graph from the exported one.

A recipe only writes files; `mlctl.optimize.variants.judge` judges its variant. `base` defines a
recipe, `discovery` finds all of them.
"""
