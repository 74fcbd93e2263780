"""The optimizations: each makes a variant's graph out of the exported one.

A recipe only writes files; whether its variant is any good is judged elsewhere. `base` is
what a recipe is, `discovery` finds them all.
"""
