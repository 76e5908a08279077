"""Importing this module lets the auto classes of Transformers know the model."""

from temper.models.multi_task.classifier import register_with_transformers

register_with_transformers()
