"""Reports from rows and JSON: tables with intervals, figures and a self-contained page."""

from temper.display.cells import Comparison
from temper.report.error_analysis import ErrorAnalysis, error_analysis
from temper.report.headline import Headline, headline
from temper.report.page import build, first_screen
from temper.report.table import comparison, write
from temper.report.trained import verdict
from temper.report.view import Overview, overview

__all__ = [
    "Comparison",
    "ErrorAnalysis",
    "Headline",
    "Overview",
    "build",
    "comparison",
    "error_analysis",
    "first_screen",
    "headline",
    "overview",
    "verdict",
    "write",
]
