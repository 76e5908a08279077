"""What making a report imports: no model's code, and Plotly only where something is drawn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("act", "absent"),
    [
        ("from temper.report import build; build({study!r})", ("transformers", "peft")),
        ("from temper.report import comparison; comparison({study!r})", ("transformers", "plotly")),
        ("from temper.evaluation.perspectives import names; names()", ("transformers", "plotly")),
    ],
    ids=["page", "comparison", "perspectives"],
)
def test_nothing_is_imported_that_is_not_needed(
    act: str, absent: tuple[str, ...], study: Path
) -> None:
    code = f"import sys; {act.format(study=str(study))}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(absent) & set(found.stdout.split())
