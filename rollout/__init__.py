"""Traffic: local deployments, and promotion of a new revision under gates that can take it back.

A deployment is one Envoy, one or two Bento processes and one daemon. The journal (SQLite) is
the truth about what was decided; the route file is the truth about where traffic goes.
"""
