"""Handwritten digits, the 1,797 real scans that scikit-learn carries, from training to rollback."""
