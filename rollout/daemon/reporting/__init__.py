"""Reports of rollouts: the alias, MLflow runs, Prometheus metrics, webhooks.

All of it is drawn from the journal, may lag behind it, and never holds a rollout up.
"""
