"""The report of an optimization as one self-contained HTML page."""

from optimize.report.page import report_html

__all__ = ["report_html"]
