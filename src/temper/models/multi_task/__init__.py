"""MT-DNN: one encoder that several tasks share, each with a head of its own (Liu et al. 2019).

Importing this package registers it with the auto classes; importing ``temper`` sees to that as soon
as those are there.
"""

from temper.models.multi_task.classifier import register_with_transformers

register_with_transformers()
