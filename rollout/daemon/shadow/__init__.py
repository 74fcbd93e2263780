"""The candidate's answers beside the live revision's, on copies of the same requests.

`daemon.recording` has the servers record a share of their requests (`bundle.sampling`) and reads
it, `join` finds the two answers to one row, `compare` judges them and `drift` their distribution.
`watch` is the shell around them, and `agreement.ShadowWindow` is what one tick found.
"""
