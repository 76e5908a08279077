"""Loading of named predictors, or an error with a remedy; nothing is unpickled or ignored."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import skops.io
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import LinearSVC

from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.errors import ModelError, SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import CallablePredictor, EstimatorPredictor
from temper.evaluation.lengths import longest_row
from temper.evaluation.loading import (
    load_predictor,
    predictor_identity,
)
from temper.evaluation.settings import PredictorSettings
from tests.cli.tiny_project import make_model

TEXTS = ["a good film", "a bad film", "fine", "poor"]
CODE = """
def predict(texts):
    return [[0.25, 0.75]] * len(texts)

def told(texts):
    return predict(texts)

told.gives = "probabilities"
told.label_names = ("bad", "good")

class Constant:
    gives, label_names = "values", None
    def predict(self, examples, *, batch_size=None):
        raise NotImplementedError

object_of_mine = Constant()
number = 3
"""


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Forget the modules that a test imported."""
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("planted"):
            del sys.modules[name]


@pytest.fixture
def code(tmp_path: Path) -> str:
    (tmp_path / "planted_code.py").write_text(CODE, encoding="utf-8")
    return str(tmp_path / "planted_code.py")


def saved(path: Path, *steps: Any, labels: Any = ("p", "n", "p", "n")) -> str:
    """Fit a pipeline and save it with skops."""
    chain = make_pipeline(*(steps or (CountVectorizer(), LogisticRegression())))
    skops.io.dump(chain.fit(TEXTS, list(labels)), path)
    return str(path)


def test_a_function_is_loaded_with_its_declared_attributes(code: str) -> None:
    predictor = load_predictor(Checkpoint(f"{code}:told"))
    assert isinstance(predictor, CallablePredictor)
    assert (predictor.gives, predictor.label_names) == ("probabilities", ("bad", "good"))
    assert predictor.predict(Examples("toy", ["a"])).probabilities.tolist() == [[0.25, 0.75]]
    assert longest_row(predictor) is None


def test_a_function_is_loaded_with_the_given_options(code: str) -> None:
    predictor = load_predictor(
        Checkpoint(f"{code}:predict"),
        settings=PredictorSettings(gives="logits", label_names=("no", "yes")),
    )
    assert (predictor.gives, predictor.label_names) == ("logits", ("no", "yes"))


def test_a_predictor_object_of_an_importable_module_is_loaded(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(code).parent))
    assert load_predictor(Checkpoint("planted_code:object_of_mine")).gives == "values"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "predict",
            PredictorSettings(),
            "is unknown. Pass --gives, or set its attribute",
        ),
        (
            "told",
            PredictorSettings(gives="logits"),
            "`gives` as 'probabilities', and the option is 'logits'",
        ),
        ("told", PredictorSettings(label_names=("good", "bad")), "defines its `label_names` as"),
        ("told", PredictorSettings(trust=("x.y",)), "--trust cannot be given .* only a skops file"),
        ("object_of_mine", PredictorSettings(gives="values"), "--gives cannot be given"),
        ("Constant", PredictorSettings(), "is a class. Name a function"),
        ("number", PredictorSettings(gives="logits"), "is int, expected a function"),
        ("nothing", PredictorSettings(), "Unknown name 'nothing'.* It must be defined in"),
        ("", PredictorSettings(), "must be given as file.py:NAME"),
    ],
)
def test_code_that_is_no_predictor_raises_an_error(
    code: str, name: str, settings: PredictorSettings, message: str
) -> None:
    with pytest.raises((ModelError, SettingError), match=message):
        load_predictor(Checkpoint(f"{code}:{name}"), settings=settings)


def test_options_of_checkpoints_raise_an_error_for_code(code: str) -> None:
    with pytest.raises(SettingError, match="`max_length` applies to checkpoints"):
        load_predictor(Checkpoint(f"{code}:told"), max_length=16)
    with pytest.raises(SettingError, match="`device` applies to checkpoints"):
        load_predictor(Checkpoint(f"{code}:told"), device="cpu")
    with pytest.raises(SettingError, match=r"`evaluate\.precision` applies to checkpoints"):
        load_predictor(Checkpoint(f"{code}:told"), precision="bf16")
    with pytest.raises(SettingError, match=r"planted_code\.py:FUNCTION"):
        load_predictor(Checkpoint(code))


def test_a_module_name_that_is_a_file_gets_a_suggestion(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(code).parent)
    with pytest.raises(SettingError, match=r"Did you mean planted_code\.py:told\?"):
        load_predictor(Checkpoint("planted_code:told"))


def test_a_skops_file_and_a_folder_with_one_predict_as_the_pipeline_does(tmp_path: Path) -> None:
    file = saved(tmp_path / "model.skops")
    chain = skops.io.load(file)
    for name in (file, str(tmp_path)):
        predictor = load_predictor(Checkpoint(name))
        assert isinstance(predictor, EstimatorPredictor)
        assert predictor.label_names == ("n", "p")
        result = predictor.predict(Examples("toy", TEXTS)).probabilities
        assert result == pytest.approx(chain.predict_proba(TEXTS))
    saved(tmp_path / "other.skops")
    with pytest.raises(ModelError, match="has several skops files: model.skops, other.skops"):
        load_predictor(Checkpoint.of(tmp_path))


def test_given_names_apply_to_classes_without_names(tmp_path: Path) -> None:
    file = saved(tmp_path / "model.skops", labels=[1, 0, 1, 0])
    assert load_predictor(Checkpoint(file)).label_names is None
    names = PredictorSettings(label_names=("bad", "good"))
    assert load_predictor(Checkpoint(file), settings=names).label_names == ("bad", "good")
    with pytest.raises(ModelError, match="has 2 classes, and `label_names` are"):
        load_predictor(Checkpoint(file), settings=PredictorSettings(label_names=("a", "b", "c")))
    named = saved(tmp_path / "named.skops")
    with pytest.raises(ModelError, match="The estimator's classes are .* Leave `label_names` out"):
        load_predictor(Checkpoint(named), settings=names)
    with pytest.raises(SettingError, match="--gives cannot be given"):
        load_predictor(Checkpoint(named), settings=PredictorSettings(gives="logits"))


def test_a_regressor_gives_values(tmp_path: Path) -> None:
    file = saved(tmp_path / "m.skops", CountVectorizer(), Ridge(), labels=[1.0, 0.0, 0.5, 0.1])
    assert load_predictor(Checkpoint(file)).gives == "values"


def test_the_error_for_a_classifier_without_probabilities_names_the_remedy(tmp_path: Path) -> None:
    file = saved(tmp_path / "m.skops", CountVectorizer(), LinearSVC())
    with pytest.raises(ModelError, match="no predict_proba.*CalibratedClassifierCV"):
        load_predictor(Checkpoint(file))


def test_types_unknown_to_skops_are_loaded_only_if_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted_step.py").write_text("def lower(rows):\n    return rows\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import planted_step  # type: ignore[import-not-found]

    step = FunctionTransformer(planted_step.lower)
    file = saved(tmp_path / "m.skops", step, CountVectorizer(), LogisticRegression())
    with pytest.raises(SettingError, match="not know to be harmless: planted_step.lower.*--trust"):
        load_predictor(Checkpoint(file))
    trusted = PredictorSettings(trust=("planted_step.lower",))
    assert load_predictor(Checkpoint(file), settings=trusted).label_names == ("n", "p")
    with pytest.raises(SettingError, match="has no untrusted type os.system; it has"):
        load_predictor(
            Checkpoint(file), settings=PredictorSettings(trust=("planted_step.lower", "os.system"))
        )


@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "model.pickle"])
def test_a_pickle_raises_an_error_even_if_the_file_is_missing(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.pkl").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(ModelError, match=r"is a pickle.*skops\.io\.dump\(pipeline, 'model\.skops'"):
        load_predictor(Checkpoint.of(tmp_path / name))


def test_a_damaged_or_missing_skops_file_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "m.skops").write_bytes(b"hello")
    with pytest.raises(ModelError, match=r"m\.skops .*not a skops file"):
        load_predictor(Checkpoint.of(tmp_path / "m.skops"))
    with pytest.raises(ModelError, match="There is no file .*gone.skops"):
        load_predictor(Checkpoint.of(tmp_path / "gone.skops"))


def test_without_skops_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.skops").write_bytes(b"hello")
    monkeypatch.setitem(sys.modules, "skops.io", None)
    with pytest.raises(ModelError, match=r"pip install 'skops>=.*' 'scikit-learn>="):
        load_predictor(Checkpoint.of(tmp_path / "m.skops"))


def test_a_checkpoint_folder_is_loaded_and_rejects_gives(tmp_path: Path) -> None:
    folder = str(make_model(tmp_path / "tiny"))
    (tmp_path / "tiny" / "beside.skops").write_bytes(b"")
    predictor = load_predictor(Checkpoint(folder), max_length=16, device="cpu")
    assert isinstance(predictor, ClassifierPredictor)
    assert longest_row(predictor) == 16
    with pytest.raises(SettingError, match="--gives cannot be given"):
        load_predictor(Checkpoint(folder), settings=PredictorSettings(gives="logits"))


def test_names_of_code_and_weights_are_distinguished() -> None:
    names = ("a.py:f", "a.b:f", "minilm", "me/model")
    assert [Checkpoint(name).kind for name in names] == ["code", "code", "weights", "weights"]
    assert Checkpoint("me/model").skops is None


def test_the_identity_depends_on_content_and_settings(code: str) -> None:
    first = predictor_identity(Checkpoint(f"{code}:predict"), PredictorSettings(gives="logits"))
    assert first == predictor_identity(
        Checkpoint(f"{code}:predict"), PredictorSettings(gives="logits")
    )
    others = {
        predictor_identity(Checkpoint(f"{code}:predict"), PredictorSettings(gives="probabilities")),
        predictor_identity(Checkpoint(f"{code}:told"), PredictorSettings(gives="logits")),
    }
    Path(code).write_text(CODE + "\n", encoding="utf-8")
    others.add(predictor_identity(Checkpoint(f"{code}:predict"), PredictorSettings(gives="logits")))
    assert len(others - {first}) == 3
    assert predictor_identity(Checkpoint("me/model")) == "me/model"
