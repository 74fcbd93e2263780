"""The report of an optimization as one self-contained HTML page."""

from mlctl.optimize.result.report.page import report_html

__all__ = ["report_html"]
