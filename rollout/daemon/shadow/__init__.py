"""The candidate's answers beside the live revision's, on copies of the same requests.

The servers record a share of their requests (`bundle.sampling`); `segments` reads it,
`join` finds the two answers to one row, `compare` judges them and `drift` their distribution.
`watch` is the shell around them, and `window` what one tick found.
"""
