"""`check_predictor` accepts correct predictors and detects every planted fault."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from transformers import pipeline

from temper.data.examples import Examples
from temper.errors import DataError, ModelError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import CallablePredictor, EstimatorPredictor, PipelinePredictor
from temper.evaluation.prediction import Prediction
from temper.evaluation.predictor import States
from temper.testing import check_predictor
from tests.evaluation.conftest import make_examples, make_model, make_tokenizer


def classifier(**settings: Any) -> ClassifierPredictor:
    return ClassifierPredictor(make_model(**settings), make_tokenizer(), max_length=64)


def estimator() -> EstimatorPredictor:
    examples = make_examples()
    chain = make_pipeline(CountVectorizer(), LogisticRegression())
    return EstimatorPredictor(chain.fit(examples.text, examples.labels))


def regressor() -> EstimatorPredictor:
    examples = make_examples(kind="regression")
    return EstimatorPredictor(
        make_pipeline(CountVectorizer(), Ridge()).fit(examples.text, examples.labels)
    )


def transformers_pipeline() -> PipelinePredictor:
    model = make_model(classes=3).train()
    model.config.id2label = {0: "no", 1: "maybe", 2: "yes"}
    return PipelinePredictor(
        pipeline("text-classification", model=model, tokenizer=make_tokenizer(), device="cpu")
    )


SOUND: dict[str, Callable[[], Any]] = {
    "classifier": classifier,
    "regression": lambda: classifier(classes=1),
    "callable": lambda: CallablePredictor(
        lambda texts: [[len(text) / 50, text.count("1")] for text in texts], gives="logits"
    ),
    "estimator": estimator,
    "regressor": regressor,
    "pipeline": transformers_pipeline,
}


@pytest.mark.parametrize("name", SOUND)
def test_every_predictor_of_ours_passes(name: str) -> None:
    predictor = SOUND[name]()
    kind = "regression" if predictor.gives == "values" else "classification"
    check_predictor(predictor, make_examples(rows=9, kind=kind))


def test_every_class_of_predictors_is_checked() -> None:
    from temper.evaluation import classifier as classifiers
    from temper.evaluation import function

    classes = {
        thing
        for module in (classifiers, function)
        for name, thing in vars(module).items()
        if isinstance(thing, type)
        and name.endswith("Predictor")
        and thing.__module__ == module.__name__
    }
    # The base of the models that read texts by a tokenizer.
    classes.remove(classifiers.TextPredictor)
    assert {type(make()) for make in SOUND.values()} == classes


class Planted:
    """A predictor without faults, until one is planted."""

    gives: Any = "probabilities"
    label_names: Any = ("few", "many")

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Any:
        fraction = self.fractions(examples, batch_size)
        return Prediction.of_probabilities(np.stack([1 - fraction, fraction], axis=1))

    def fractions(self, examples: Examples, batch_size: int | None) -> Any:
        return np.asarray([1 / (1 + len(text)) for text in examples.text])


def not_finite(found: Prediction) -> Prediction:
    found.probabilities[1, 0] = np.nan
    return found


def changed_predictor(name: str, change: Callable[[Prediction], Any]) -> type[Planted]:
    """Return a predictor whose predictions are changed."""

    def predict(self: Planted, examples: Examples, *, batch_size: int | None = None) -> Any:
        return change(Planted.predict(self, examples, batch_size=batch_size))

    return type(name, (Planted,), {"predict": predict})


def sharing(name: str, change: Callable[[Any, Examples, int | None], Any]) -> type[Planted]:
    """Return a predictor whose probabilities are changed."""

    def fractions(self: Planted, examples: Examples, batch_size: int | None) -> Any:
        return change(Planted.fractions(self, examples, batch_size), examples, batch_size)

    return type(name, (Planted,), {"fractions": fractions})


class OtherKind(Planted):
    gives = "values"
    label_names = None


class Drawing(Planted):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def fractions(self, examples: Examples, batch_size: int | None) -> Any:
        return np.clip(
            super().fractions(examples, batch_size) + self.rng.uniform(-0.01, 0, 1), 0, 1
        )


class DrawingGlobally(Planted):
    def fractions(self, examples: Examples, batch_size: int | None) -> Any:
        random.random()
        return super().fractions(examples, batch_size)


class Changing(Planted):
    def fractions(self, examples: Examples, batch_size: int | None) -> Any:
        found = super().fractions(examples, batch_size)
        examples.source["seen"] = True
        return found


class Raising(Planted):
    def fractions(self, examples: Examples, batch_size: int | None) -> Any:
        if batch_size == 1:
            raise KeyError("no such batch")
        return super().fractions(examples, batch_size)


class ThreeNames(Planted):
    label_names = ("few", "some", "many")


class TwiceNamed(Planted):
    label_names = ("many", "many")


class UnknownKind(Planted):
    gives = "scores"


class Training(ClassifierPredictor):
    """Leaves the model in training mode."""

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        found = super().predict(examples, batch_size=batch_size)
        self.model.train()
        return found


class OtherTokens(ClassifierPredictor):
    def predict_encoded(self, encoded: Any, **options: Any) -> Any:
        found = super().predict_encoded(encoded, **options)
        return (
            found if options.get("tell") is None else found.take([2, 1, 0, *range(3, len(found))])
        )


class SpoiledTokens(ClassifierPredictor):
    def predict_encoded(self, encoded: Any, **options: Any) -> Any:
        found = super().predict_encoded(encoded, **options)
        if options.get("tell") is not None:
            encoded.items[0]["input_ids"][0] = 7
        return found


class Unsaid(ClassifierPredictor):
    def predict_encoded(self, encoded: Any, **options: Any) -> Any:
        return super().predict_encoded(encoded, batch_size=options.get("batch_size"))


def leaving(act: Callable[[Any], object]) -> type[ClassifierPredictor]:
    """Return a predictor that does something to its model once a session has ended."""

    class Leaving(ClassifierPredictor):
        @contextmanager
        def session(self, *, single: bool = False) -> Iterator[Any]:
            with super().session(single=single) as session:
                yield session
            act(self.model)

    return Leaving


class LeftAfterError(ClassifierPredictor):
    @contextmanager
    def session(self, *, single: bool = False) -> Iterator[Any]:
        handle = self.model.register_forward_hook(lambda *_: None)
        with super().session(single=single) as session:
            yield session
        handle.remove()


class WrappedSession:
    def __init__(self, session: Any) -> None:
        self.session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


class Deaf(WrappedSession):
    def logits(self, part: Any, *, delta: Any = None) -> Any:
        plain = self.session.logits(part)
        return plain if delta is None else plain + 0.0 * delta.sum()


class Leaking(WrappedSession):
    def logits(self, part: Any, *, delta: Any = None) -> Any:
        found = self.session.logits(part, delta=delta)
        return found if delta is None else found + delta.sum()


class Shifted(WrappedSession):
    def logits(self, part: Any, *, delta: Any = None) -> Any:
        return self.session.logits(part, delta=delta) * 1.01


class Nested(WrappedSession):
    def logits(self, part: Any, *, delta: Any = None) -> Any:
        return self.session.logits(part, delta=delta).unsqueeze(1)


def opening(wrapper: type[WrappedSession]) -> type[ClassifierPredictor]:
    class Wrapping(ClassifierPredictor):
        @contextmanager
        def session(self, *, single: bool = False) -> Iterator[Any]:
            with super().session(single=single) as session:
                yield wrapper(session)

        def states(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[States]:
            return ClassifierPredictor(self.model, self.tokenizer, max_length=64).states(
                examples, batch_size=batch_size
            )

    return Wrapping


class ManyStates(ClassifierPredictor):
    def states(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[States]:
        for states in super().states(examples, batch_size=batch_size):
            yield replace(states, layers=[layer[:, None] for layer in states.layers])


class FewStates(ClassifierPredictor):
    def states(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[States]:
        yield next(iter(super().states(examples, batch_size=3)))


class BatchedStates(ClassifierPredictor):
    def states(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[States]:
        for states in super().states(examples, batch_size=batch_size):
            centered = [layer - layer.mean(dim=0) for layer in states.layers]
            yield replace(states, layers=centered)


SORTING = sharing("Sorting", lambda found, *_: np.sort(found))
PEEKING = sharing("Peeking", lambda found, rows, _: found if rows.labels is None else found / 2)
BARE = {
    changed_predictor("NotFinite", not_finite): "Probabilities must be finite",
    changed_predictor(
        "NotOne", lambda found: replace(found, probabilities=found.probabilities * 1.01)
    ): ("sum to 1"),
    changed_predictor(
        "TooFew", lambda found: replace(found, prediction=found.prediction[1:])
    ): "predict every row once: 9 rows got 8 predictions",
    OtherKind: "`gives` is 'values', but `predict` returns classes",
    changed_predictor(
        "BareArray", lambda found: found.probabilities
    ): "must return a Prediction, got ndarray",
    changed_predictor(
        "WrongClass", lambda found: replace(found, prediction=1 - found.prediction)
    ): "predicted class .*highest probability",
    SORTING: "keep the order of the rows",
    Drawing: "in a second call",
    DrawingGlobally: "generators changed: random state of Python",
    sharing(
        "Batched", lambda found, _, size: found * (1 if size is None else 0.999)
    ): r"With batch_size=3 predictions differ by more than 1e-05",
    sharing(
        "Normalizing", lambda found, *_: found / found.sum()
    ): "row alone gets a different prediction",
    PEEKING: "must not look at labels",
    Changing: r"changes the examples .*\(source\)",
    Raising: "`predict` fails: KeyError: 'no such batch'",
    sharing("Constant", lambda found, *_: np.full(len(found), 0.25)): "All predictions are equal",
    ThreeNames: "`label_names` has 3 names, but the predictions have 2 classes",
    TwiceNamed: "`label_names` must be two or more",
    UnknownKind: "`gives` must be one of logits, probabilities, values",
}
WITH_MODEL = {
    Training: "changed: training flags of model",
    OtherTokens: "predictions of `predict_encoded` differ",
    SpoiledTokens: "`predict_encoded` changes the token ids",
    Unsaid: "`predict_encoded` does not report .*all rows",
    leaving(lambda model: model.requires_grad_(False)): "changed: what of model wants gradients",
    LeftAfterError: "an error ends .*changed: hooks of model",
    leaving(lambda model: model.classifier.bias.data.add_(1e-3)): "changed: weights of model",
    opening(Deaf): "gradient of the logits by `delta` is zero",
    opening(Leaking): "on one row changes .*others",
    opening(Nested): r"`logits` of a session must be \[B, C\], got \[\d+, 1, 2\]",
    opening(Shifted): "`logits` of a session .*differ",
    ManyStates: r"must be \[B, D\], one line a row",
    FewStates: "`states` does not give .*once",
    BatchedStates: "states depend on the batch",
}


def test_the_predictor_that_faults_are_planted_in_has_none() -> None:
    check_predictor(Planted(), make_examples(rows=9))


def test_a_predictor_of_tags_cannot_be_checked() -> None:
    planted = Planted()
    planted.gives = "tags"
    with pytest.raises(ModelError, match="gives tags cannot be checked"):
        check_predictor(planted, make_examples(rows=9))


@pytest.mark.parametrize("planted", BARE, ids=lambda kind: kind.__name__)
def test_a_planted_fault_of_predictions_is_found(planted: type[Planted]) -> None:
    with pytest.raises(ModelError, match=f"{planted.__name__} breaks the contract") as caught:
        check_predictor(planted(), make_examples(rows=9))
    assert caught.match(BARE[planted])


@pytest.mark.parametrize("planted", WITH_MODEL, ids=lambda kind: kind.__name__)
def test_a_planted_fault_of_a_model_is_found(planted: type[ClassifierPredictor]) -> None:
    predictor = planted(make_model().eval(), make_tokenizer(), max_length=64)
    with pytest.raises(ModelError, match=WITH_MODEL[planted]):
        check_predictor(predictor, make_examples(rows=9))


def test_all_errors_are_reported_at_once() -> None:
    class Several(ThreeNames):
        def predict(self, examples: Examples, *, batch_size: int | None = None) -> Any:
            random.random()
            return super().predict(examples, batch_size=batch_size)

        def fractions(self, examples: Examples, batch_size: int | None) -> Any:
            found = np.sort(super().fractions(examples, batch_size))
            return found if examples.labels is None else found / 2

    with pytest.raises(ModelError, match="breaks the contract") as caught:
        check_predictor(Several(), make_examples(rows=9))
    for words in (
        "3 names",
        "keep the order of the rows",
        "look at labels",
        "random state of Python",
    ):
        assert words in str(caught.value)


def test_an_object_without_the_predictor_methods_raises_an_error() -> None:
    with pytest.raises(ModelError, match="It has no `predict`, `gives`, `label_names`"):
        check_predictor(object(), make_examples(rows=9))


def test_too_few_examples_raise_an_error() -> None:
    with pytest.raises(
        DataError, match="checked on 4 different texts or more, but set 'dev' has 3"
    ):
        check_predictor(Planted(), Examples("dev", ["a", "b", "c", "c"]))
