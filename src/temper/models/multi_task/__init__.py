"""MT-DNN: one encoder that several tasks share, each with a head of its own (Liu et al. 2019).

``classifier`` makes it known to the auto classes of Transformers; importing ``temper`` sees to that
as soon as those are there.
"""

TYPE = "mt_dnn"
"""Its name on the command line, which is also the config's ``model_type``."""
LISTING = {
    "source": "any model, with --multi-task NAME for each task",
    "architecture": "one encoder under a head for each task",
    "parameters": "the model's",
    "learning_rate": "the model's",
    "note": "trained on several tasks at once (Liu et al. 2019); settings: tasks.NAME, mixing",
}
"""The row of the table of models."""
