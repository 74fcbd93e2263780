"""Payments scored as they happen: an XGBoost model on a stream."""
