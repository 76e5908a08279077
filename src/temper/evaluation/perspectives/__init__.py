"""Perspectives: groups of metrics, one file each."""

from temper.evaluation.perspectives.registry import NEEDS as NEEDS
from temper.evaluation.perspectives.registry import Perspective as Perspective
from temper.evaluation.perspectives.registry import defaults as defaults
from temper.evaluation.perspectives.registry import listing as listing
from temper.evaluation.perspectives.registry import names as names
from temper.evaluation.perspectives.registry import perspective as perspective
from temper.evaluation.perspectives.registry import perspectives as perspectives
from temper.evaluation.perspectives.registry import register as register
from temper.evaluation.perspectives.registry import register_all as register_all
from temper.evaluation.perspectives.registry import registered_for_a_while as registered_for_a_while
