"""The page that shows an optimization: one file, without scripts and without a network."""

from optimize.report.page import report_html

__all__ = ["report_html"]
