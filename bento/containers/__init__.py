"""Containerfiles, locked requirements and bills of materials of a Bento."""
