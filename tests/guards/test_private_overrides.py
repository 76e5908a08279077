"""`RobustTrainer` overrides few private methods of Trainer, each with a test that needs it."""

from __future__ import annotations

from pathlib import Path

from transformers import Trainer

from temper.training.trainer import RobustTrainer

ROOT = Path(__file__).resolve().parents[2]
MOST = 6
NEEDED_BY = {
    # Stops before a step on NaN, and gathers the norm of sharded gradients.
    "_get_grad_norm": "test_trainer_data.py::"
    "test_a_gradient_that_is_not_finite_stops_even_with_a_finite_loss",
    # Transformers' grouping by length draws from the global generator.
    "_get_train_sampler": "test_trainer_data.py::"
    "test_rows_of_similar_length_share_a_batch_by_default",
    # Transformers pickles the optimizer, and writes into the final folder.
    "_save_checkpoint": "test_resume.py::test_checkpoints_are_safetensors_and_json_alone",
    # Transformers reads pickles, and no callback runs after the rows of earlier steps are skipped.
    "_load_rng_state": "test_resume.py::test_a_method_resumes_to_the_same_bytes",
}
"""The test in tests/training that fails without the override."""


def overrides(kind: type[Trainer]) -> set[str]:
    """Return the private methods of Trainer that a class or its bases override."""
    bases = [base for base in kind.__mro__ if not issubclass(Trainer, base)]
    return {
        name
        for base in bases
        for name in vars(base)
        if name.startswith("_") and not name.endswith("__") and hasattr(Trainer, name)
    }


def test_private_overrides_are_few_and_each_has_a_test() -> None:
    assert overrides(RobustTrainer) == set(NEEDED_BY)
    assert len(NEEDED_BY) <= MOST
    for test in NEEDED_BY.values():
        file, name = test.split("::")
        text = (ROOT / "tests" / "training" / file).read_text(encoding="utf-8")
        assert f"def {name}(" in text


def test_an_override_in_a_subclass_or_a_base_is_counted() -> None:
    class Base:
        def _save(self) -> None: ...

    class Own(Base, RobustTrainer):
        def _wrap_model(self) -> None: ...

    assert overrides(Own) == {*NEEDED_BY, "_save", "_wrap_model"}
