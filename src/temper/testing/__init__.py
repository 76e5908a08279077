"""Checks for the tests of your own methods, perspectives and predictors.

`check_method`, `check_perspective` and `check_predictor` run the contract tests of Temper's own
classes, and raise one error that lists every fault::

    def test_my_method_passes_the_contract_tests() -> None:
        check_method("my_method")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from temper.importing import on_first_use

if TYPE_CHECKING:
    from temper.testing.methods import LAWS as LAWS
    from temper.testing.methods import check_method as check_method
    from temper.testing.perspectives import check_perspective as check_perspective
    from temper.testing.predictors import check_predictor as check_predictor

_PUBLIC = {
    "LAWS": "methods",
    "check_method": "methods",
    "check_perspective": "perspectives",
    "check_predictor": "predictors",
}
__all__ = list(_PUBLIC)
__getattr__ = on_first_use(__name__, _PUBLIC)
