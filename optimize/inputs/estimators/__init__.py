"""Estimators with scikit-learn's interface: load without running code, run, convert to ONNX."""

from mlctl.optimize.inputs.estimators.estimator import Estimator, load_estimator, with_outputs
from mlctl.optimize.inputs.estimators.reference import EstimatorReference

__all__ = ["Estimator", "EstimatorReference", "load_estimator", "with_outputs"]
