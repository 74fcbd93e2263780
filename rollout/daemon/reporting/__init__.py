"""What is seen of rollouts: the live picture, MLflow runs, Prometheus metrics, notices.

All of it is drawn from the journal, may lag behind it, and never holds a rollout up.
"""
