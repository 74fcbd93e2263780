"""The command line: one file per command, which parses, calls a library function, and renders.

Every module here imports its heavy libraries inside the command that needs them.
"""
