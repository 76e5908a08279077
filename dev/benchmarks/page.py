"""Size and first paint of a report's page: ``python -m dev.benchmarks.page runs/demo``.

The page is rebuilt and opened several times in headless Chromium, at the width of a desktop and of
a phone. The browser reports the time from the start of the navigation to the first contentful
paint. The command prints kilobytes, and the median, minimum and maximum of the times.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from statistics import median

from rich.console import Console

from temper.report import build
from tests.report.browser import Browser

WIDTHS = (1280, 390)
PAINT = (
    "new Promise(done => new PerformanceObserver(seen => done(seen.getEntries()[0].startTime))"
    ".observe({type: 'paint', buffered: true}))"
)


def main() -> None:
    """Print the page's size and its times to first paint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/demo"))
    parser.add_argument("--times", type=int, default=7)
    arguments = parser.parse_args()
    console, chromium = Console(), shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        parser.error("needs Chromium on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        page = build(arguments.folder, Path(folder) / "page.html")
        console.print(f"{page.stat().st_size / 1000:.0f} kB")
        with Browser(chromium, Path(folder) / "profile") as browser:
            for width in WIDTHS:
                paints = []
                for _ in range(arguments.times):
                    browser.open(page, width=width)
                    paints.append(browser.evaluate(PAINT))
                console.print(
                    f"{width} px wide: first paint after {median(paints):.0f} ms "
                    f"({min(paints):.0f} to {max(paints):.0f})"
                )


if __name__ == "__main__":
    main()
