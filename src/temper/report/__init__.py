"""Reports of evaluations: tables with intervals, figures, and a self-contained page."""

from temper.display.cells import Comparison
from temper.report.error_analysis import ErrorAnalysis, error_analysis
from temper.report.headline import Headline, headline
from temper.report.page import build, export_figures, first_screen, write_report
from temper.report.table import compare, comparison, write
from temper.report.trained import verdict
from temper.report.view import Opening, Overview, overview

__all__ = [
    "Comparison",
    "ErrorAnalysis",
    "Headline",
    "Opening",
    "Overview",
    "build",
    "compare",
    "comparison",
    "error_analysis",
    "export_figures",
    "first_screen",
    "headline",
    "overview",
    "verdict",
    "write",
    "write_report",
]
