"""Ranking: the candidates of a user, scored in one request."""
