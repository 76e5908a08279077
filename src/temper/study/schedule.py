"""Run a study on this machine: train and evaluate run after run, keep what is finished, then report."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from temper import methods, report
from temper.data.columns import Columns
from temper.data.examples import Examples, Splits
from temper.data.sources import DataSettings, load_examples, load_splits
from temper.data.tasks import default_metric
from temper.errors import TemperError
from temper.evaluation.predictor import ClassifierPredictor
from temper.evaluation.run import EvaluationData, EvaluationSettings, evaluate, write
from temper.models.hf import load_classifier
from temper.study.cost import step_cost
from temper.study.plan import Column, StudyConfig
from temper.study.store import StudyFolder, evaluation_key, publish_evaluation
from temper.training.checkpoint_folder import RunFolder, make_folder, remove_empty
from temper.training.config import digest
from temper.training.progress import Progress
from temper.training.run import label_names, run_key, train
