"""Perspectives: groups of metrics, one file each.

Names are imported on first use, because the registry imports every file of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from temper.importing import on_first_use

if TYPE_CHECKING:
    from temper.evaluation.perspectives.registry import NEEDS as NEEDS
    from temper.evaluation.perspectives.registry import Perspective as Perspective
    from temper.evaluation.perspectives.registry import defaults as defaults
    from temper.evaluation.perspectives.registry import listing as listing
    from temper.evaluation.perspectives.registry import names as names
    from temper.evaluation.perspectives.registry import perspective as perspective
    from temper.evaluation.perspectives.registry import perspectives as perspectives
    from temper.evaluation.perspectives.registry import register as register
    from temper.evaluation.perspectives.registry import register_all as register_all
    from temper.evaluation.perspectives.registry import (
        registered_for_a_while as registered_for_a_while,
    )

__getattr__ = on_first_use(
    __name__,
    dict.fromkeys(
        (
            *("NEEDS", "Perspective", "defaults", "listing", "names", "perspective"),
            *("perspectives", "register", "register_all", "registered_for_a_while"),
        ),
        "registry",
    ),
)
