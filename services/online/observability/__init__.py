"""Observability of requests: access log, spans, and samples of their payloads.

Nothing of it is made, or even imported, unless it is asked for; and then the path of a request
only puts a value on a bounded list, and one thread does the rest.
"""
