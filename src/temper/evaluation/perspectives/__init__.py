"""Perspectives: ways of looking at a classifier, one file each."""

from temper.evaluation.perspectives.contract import NEEDS as NEEDS
from temper.evaluation.perspectives.contract import Perspective as Perspective
from temper.evaluation.perspectives.registry import PERSPECTIVES as PERSPECTIVES
from temper.evaluation.perspectives.registry import defaults as defaults
from temper.evaluation.perspectives.registry import listing as listing
from temper.evaluation.perspectives.registry import names as names
from temper.evaluation.perspectives.registry import perspective as perspective
from temper.evaluation.perspectives.registry import readers as readers
