"""Customers who leave: a scikit-learn pipeline from training to a nightly table of scores."""
